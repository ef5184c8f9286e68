"""The worker against its peers: the same jobs, one PostgreSQL, real processes, in turns."""
