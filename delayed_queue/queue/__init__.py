"""The queue: offer, claim, settle, consume, inspect."""
