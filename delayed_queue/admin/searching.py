"""The search box: the beginning of a key, or a word such as ``group:`` before a value.

An index finds the rows of a key, a group, a lease, a worker or a batch. For other words a page
reads at most SCANNED rows in the order of the list and compares each; the next page continues.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Left

from delayed_queue.admin.lists import Keyset
from delayed_queue.admin.rows import is_id
from delayed_queue.models import Worker

Rows = QuerySet[Any]
# The last character in the order of UTF-8, which is that of the collation C.
_LAST: Final = "\U0010ffff"
_MAX_WORKERS: Final = 50
# A lease id starts with as many characters of its worker process.
HOLDER_LENGTH: Final = 8


class Term(NamedTuple):
    """A word of the search box: the rows that an index finds, and what they must match.

    ``rows`` takes the value and the chosen queue, which may be None. ``keyset`` is the order that
    the index gives; None is the order of the list. ``scans``: the match, or a filter of the list,
    is not part of the index. ``branches``: conditions with an index each.
    """

    rows: Callable[[Rows, str, str | None], Rows]
    keyset: Keyset | None = None
    matches: Callable[[str], Q] = lambda value: Q()
    scans: bool = False
    branches: tuple[Q, ...] = (Q(),)
    needs_queue: bool = False


class Search(NamedTuple):
    """An operator's search, and the chosen queue."""

    term: Term
    value: str
    kind: str | None

    @property
    def lacks_queue(self) -> bool:
        return self.term.needs_queue and self.kind is None

    def narrowed(self, rows: Rows) -> Rows:
        """Return the rows that the index finds."""
        return self.term.rows(rows, self.value, self.kind)

    def found(self, rows: Rows) -> Rows:
        return self.narrowed(rows).filter(self.term.matches(self.value))


def search_of(terms: dict[str, Term], text: str, kind: str | None) -> Search | None:
    """Return the search for the text; without a word it is the beginning of a key."""
    word, colon, value = text.partition(":")
    if not terms or not text:
        return None
    if colon and word.strip() in terms:
        return Search(terms[word.strip()], value, kind)
    return Search(terms[""], text.strip(), kind)


def _beginning_with(rows: Rows, value: str, kind: str | None) -> Rows:
    return rows.filter(key__gte=value, key__lt=f"{value}{_LAST}")


def _with_key(rows: Rows, value: str, kind: str | None) -> Rows:
    """Find a key exactly, also with the blanks around a copied key."""
    return rows.filter(key__in={value, value.strip()})


def _of_group(rows: Rows, value: str, kind: str | None) -> Rows:
    # The indexes on groups start with the queue.
    return rows.none() if kind is None else rows.filter(kind=kind, group=value.strip())


def leases_from(beginning: str) -> Q:
    """Return the condition for messages whose lease id begins so; for "" there are none."""
    # "g" sorts behind every hexadecimal digit.
    found = Q(lease_id__gte=beginning, lease_id__lt=f"{beginning}g")
    return found if beginning else Q(pk__in=[])


def _leased(rows: Rows, value: str, kind: str | None) -> Rows:
    return rows.filter(leases_from(value.strip()))


def _of_batch(rows: Rows, value: str, kind: str | None) -> Rows:
    batch = value.strip()
    # With equality the planner would walk the primary key: only the id would order the rows.
    return rows.filter(batch_id__gte=batch, batch_id__lte=batch) if is_id(batch) else rows.none()


def _named(value: str) -> Q:
    return Q(name__startswith=value.strip()) | Q(host__startswith=value.strip())


def _held(rows: Rows, value: str, kind: str | None) -> Rows:
    workers = Worker.objects.using(rows.db).filter(_named(value)).exclude(holder="").order_by("-id")
    leases = Q(pk__in=[])
    for worker in workers[:_MAX_WORKERS]:
        leases |= leases_from(worker.holder)
    return rows.filter(leases)


def _held_at_last(value: str) -> Q:
    """Return the condition for dead letters whose last lease was of such a worker."""
    lease = Left(OuterRef("lease_id"), HOLDER_LENGTH)
    return Q(Exists(Worker.objects.filter(_named(value), holder=lease)))


def _of_queue(rows: Rows, value: str, kind: str | None) -> Rows:
    return rows if kind is None else rows.filter(kind=kind)


def _with_header(value: str) -> Q:
    name, _, text = value.strip().partition("=")
    found = Q(headers__contains={name: text})
    try:
        return found | Q(headers__contains={name: json.loads(text)})
    except (ValueError, RecursionError):
        return found


def with_text(*columns: str) -> Term:
    """Find rows with the text in one of the columns."""

    def matches(value: str) -> Q:
        return Q(*((f"{column}__icontains", value.strip()) for column in columns), _connector=Q.OR)

    return Term(_of_queue, matches=matches, scans=True)


def whole_key(keyset: Keyset) -> Term:
    return Term(_with_key, keyset)


def of_group(keyset: Keyset, *branches: Q) -> Term:
    return Term(_of_group, keyset, branches=branches or (Q(),), needs_queue=True)


BY_LEASE: Final = Keyset("lease_id", is_text=True)
LEASE: Final = Term(_leased, BY_LEASE)
WORKER: Final = Term(_held, BY_LEASE)
BATCH: Final = Term(_of_batch, Keyset("batch_id"))
PREFIX: Final = Term(_beginning_with, Keyset("key", is_text=True), scans=True)
HEADER: Final = Term(_of_queue, matches=_with_header, scans=True)
LAST_WORKER: Final = Term(_of_queue, matches=_held_at_last, scans=True)
