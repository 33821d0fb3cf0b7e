"""The files beside an exported model: the card, its description for programs, file hashes and warm-up requests."""
