"""The worker beside other queues: the same jobs, one PostgreSQL, real processes, in turns."""
