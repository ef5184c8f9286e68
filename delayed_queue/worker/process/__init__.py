"""Processes of a worker: the supervisor, crash recovery, health."""
