"""What can be seen of a queue at work: signals, logs, instruments, metrics, traces, counts."""
