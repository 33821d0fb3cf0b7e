"""What only custom tasks have: names of columns, checks of rows, held-out rows, several labels in a row."""
