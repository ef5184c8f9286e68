"""The HTTP API: calls about jobs; notifications share its endpoints, bodies and replies."""
