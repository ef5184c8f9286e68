"""The HTTP API: its frame, its tokens, its waiting."""
