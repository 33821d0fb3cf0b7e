"""What only custom tasks have: names of columns, checks of rows, and training rows that are held out."""
