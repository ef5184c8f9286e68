"""The HTTP API: endpoints, and the calls about jobs."""
