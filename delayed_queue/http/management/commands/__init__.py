"""Commands of the HTTP service."""
