"""What the project ships of recorded numbers, hashes and directories, and the scripts that make them."""
