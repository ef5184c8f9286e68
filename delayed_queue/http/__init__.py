"""The HTTP service: topics and jobs, the API, tokens, callbacks."""
