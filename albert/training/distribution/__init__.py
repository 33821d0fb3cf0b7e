"""The devices and processes that train a model together."""
