"""The statements of topics, jobs, tokens, rates and callbacks."""
