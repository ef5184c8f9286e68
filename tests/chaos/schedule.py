"""The schedule of faults: drawn from a seed, so that a run can be repeated."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

# Relative frequency of each fault.
FAULTS: Final = {
    "kill a working process": 6,
    "kill a supervisor": 3,
    "kill a consumer": 4,
    "stop a process and let it go on": 4,
    "terminate and restart a worker": 3,
    "end all connections": 3,
    "cut the network": 3,
    "refuse connections for a while": 2,
    "crash the server": 1,
}
PAUSE: Final = 0.7


@dataclass(frozen=True, slots=True)
class Fault:
    """``choice`` selects among the targets at that time; ``length`` is in seconds."""

    at: float
    name: str
    choice: int
    length: float


def drawn(seed: int, seconds: float) -> list[Fault]:
    """Return the faults of a run of that length; a longer run starts with the same ones."""
    source = random.Random(seed)
    faults, at = [], 0.0
    while (at := at + source.expovariate(1 / PAUSE)) < seconds:
        (name,) = source.choices(list(FAULTS), list(FAULTS.values()))
        faults.append(Fault(at, name, source.randrange(2**16), source.uniform(0.1, 2.5)))
    return faults
