"""Which fault comes when: drawn from a seed, so that a run can be repeated."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

# Each with how often it comes, compared with the others.
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
    """``choice`` picks among the targets there are then; ``length`` is in seconds."""

    at: float
    name: str
    choice: int
    length: float


def drawn(seed: int, seconds: float) -> list[Fault]:
    """Return the faults of a run of that length; a longer run begins with the same ones."""
    source = random.Random(seed)
    faults, at = [], 0.0
    while (at := at + source.expovariate(1 / PAUSE)) < seconds:
        (name,) = source.choices(list(FAULTS), list(FAULTS.values()))
        faults.append(Fault(at, name, source.randrange(2**16), source.uniform(0.1, 2.5)))
    return faults
