"""Mods of the whole app, which look at every message."""
