"""What all benchmarks share: databases, processes, rounds, the machine, reports."""
