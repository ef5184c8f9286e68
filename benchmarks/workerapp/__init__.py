"""The Django app of measured worker processes."""
