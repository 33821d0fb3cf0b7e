"""The reliability campaign: kills, damage, full disks, signals and bad input, from a printed seed (`make torture`)."""
