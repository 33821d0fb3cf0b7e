"""What only custom tasks have: names of columns, checks of rows, rows that are held out, and several labels in a row."""
