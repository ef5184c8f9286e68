"""Observe queues at work: signals, logs, instruments, metrics, traces, counts."""
