"""Configuration: frozen, validated dataclasses, their flags, and the recipes in configs/."""
