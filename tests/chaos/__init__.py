"""A soak: workers, consumers and a producer under random faults, and a referee."""
