"""A file of orders, real worker processes, a kill on the way, and a checked report."""
