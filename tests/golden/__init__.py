"""Recorded numbers that the project ships, and the script that makes them."""
