"""The engine of a worker process: its claim loop, pools, leases and heartbeat."""
