"""The demo: acts that each show a part of the system at work, and check what came of it."""
