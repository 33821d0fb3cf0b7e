"""Worker processes, and how a process finds out whether others are alive."""
