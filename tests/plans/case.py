"""A case of a plan test: a statement, its parameters, its index and its maximum cost."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from tests.plans.rows import NOW
from tests.support.statements import STATEMENTS

PRIMARY: Final = "delayed_queue_pkey"
KEYS: Final = "delayed_queue__PKeyPlusKindUniqueIndex"
DUE: Final = "delayed_queue__KindPlusScheduledAtIndex"
LEASES: Final = "delayed_queue__LockUuidPlusIdIndex"
GROUPS: Final = "delayed_queue__GroupPlusScheduledAtIndex"
HELD: Final = "delayed_queue__GroupPlusLeasedUntilIndex"
BEGUN: Final = "delayed_queue__GroupPlusLockUuidIndex"
LIMITS: Final = "limit_kind_group"
SCHEDULES: Final = "schedule_kind_prefix"
SAMPLES: Final = "delayed_queue_sample_rest_pkey"
DEAD_PRIMARY: Final = "delayed_queue_dead_letter_pkey"
DEAD_DIED: Final = "dead_letter_kind_died"
DEAD_IDS: Final = "dead_letter_kind_id"
DEAD_KEYS: Final = "dead_letter_key"
DEAD_GROUPS: Final = "dead_letter_group"
TOPICS: Final = "topic_name"

# Far ahead, so that dead versions of rolled-back claims affect no other case.
LEASE: Final = 10**11

# Default parameters of a case.
COMMON: Final[dict[str, Any]] = {
    "now": NOW, "kind": "bulk|json", "key": "key-5", "group": None, "limit": 100,
    "lease": LEASE, "lease_id": "lease-1700", "retaken_id": "again", "payload": b"y",
    "schedule_at": None, "headers": None, "error": "Traceback", "by": "", "reason": None,
    "failure": "",
    "expires_at": None, "expires_in": None,
}  # fmt: skip


class Each(tuple[Any, ...]):
    """Values of a parameter: each makes its own case."""

    __slots__ = ()

    def __new__(cls, *values: Any) -> Each:
        return super().__new__(cls, values)


@dataclass(frozen=True)
class Case:
    """A statement for ``n`` rows, and its maximum cost.

    ``max_rows`` limits the rows read for each of the ``n`` over all scans (a bitmap counts twice).
    ``max_buffers`` limits the pages, on top of ``fixed`` pages.
    """

    id: str
    statement: str
    params: dict[str, Any]
    reads: frozenset[str]
    n: int
    max_rows: int
    max_buffers: int
    fixed: int
    or_reads: str
    scans: frozenset[str]
    may_scan_generically: bool


def cases(
    statement: str,
    *reads: str,
    n: int | None = None,
    max_rows: int = 5,
    max_buffers: int = 60,
    fixed: int | None = None,
    or_reads: str = "",
    scans: Iterable[str] = (),
    may_scan_generically: bool = False,
    **params: Any,
) -> list[Case]:
    """Return a case for each combination of the parameters that are ``Each``.

    ``n`` is the number of ids or the limit unless given. The number of ``ids`` is replaced by
    ids of leased messages or dead letters when the test runs.
    """
    names = set(re.findall(r"%\((\w+)\)", STATEMENTS[statement]))
    if unknown := params.keys() - names:
        raise TypeError(f"{statement} has no parameter {', '.join(unknown)}")
    ways = {name: value for name, value in params.items() if isinstance(value, Each)}
    if fixed is None:
        fixed = 300 if "ids" in params else 20
    found = []
    for values in product(*ways.values()):
        chosen = params | dict(zip(ways, values, strict=True))
        limit = chosen.get("limit", COMMON["limit"]) if "limit" in names else 1
        found.append(
            Case(
                "-".join([statement, *map(_label, values)]), statement,
                {name: chosen[name] if name in chosen else COMMON[name] for name in names},
                frozenset(reads), n or chosen.get("ids") or limit, max_rows, max_buffers, fixed,
                or_reads, frozenset(scans), may_scan_generically,
            )
        )  # fmt: skip
    return found


def _label(value: Any) -> str:
    return f"{len(value)}x{value[-1]}" if isinstance(value, list) else str(value)


def lease_ids(number: int) -> list[str]:
    return [f"lease-{1700 + each}" for each in range(number)]


def leased(statement: str, **params: Any) -> list[Case]:
    """Return cases over ids of one lease, and of ten."""
    # On drained tables PostgreSQL 15 reads a whole lease of a hundred messages to find one id.
    sizes = ((1, 1, 110), (100, 1, 8), (1000, 10, 8))
    return [
        each
        for n, held, rows in sizes
        for each in cases(
            statement, PRIMARY, ids=Each(n), lease_ids=lease_ids(held), max_rows=rows,
            or_reads=LEASES, **params,
        )
    ]  # fmt: skip
