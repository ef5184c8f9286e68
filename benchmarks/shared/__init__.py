"""Shared by all benchmarks: databases, processes, rounds, the machine, reports."""
