"""Check that a queue is known, and report what a stream cannot take from it."""

from __future__ import annotations

from typing import Final

from delayed_queue.db.sql import column_of, row_of, value_of
from delayed_queue.exceptions import InvalidConfiguration, did_you_mean
from delayed_queue.queue.store.inspect import KINDS
from delayed_queue.spark.database import Connection, fetch
from delayed_queue.spark.store.streaming import (
    BACKLOG,
    LOOK_AROUND,
    QUEUE_RULES,
    WHICH_DATABASE,
    AroundRow,
    RulesRow,
)

# At most this many kinds are compared with a name that is unknown.
_MOST_KINDS: Final = 1_000
# Due messages are counted up to this many.
_MOST_COUNTED: Final = 10_000


def rules_of(connection: Connection, kind: str) -> RulesRow:
    return row_of(RulesRow, fetch(connection, QUEUE_RULES, {"kind": kind}))


def check_known(connection: Connection, kind: str) -> None:
    """Raise InvalidConfiguration for a queue that no table of the database names."""
    if rules_of(connection, kind).is_known:
        return
    database = value_of(fetch(connection, WHICH_DATABASE, {}))
    kinds = column_of(fetch(connection, KINDS, {"limit": _MOST_KINDS}))
    raise InvalidConfiguration(
        f"No message of the database {database!r} has the kind {kind!r}."
        f"{did_you_mean(kind, kinds)} There are {', '.join(kinds[:20]) or 'none'}."
    )


def start_of(connection: Connection, kind: str) -> int:
    """Return the database's clock, at which a stream starts that ends when the queue is empty.

    Raises InvalidConfiguration where the queue's rules hold back what is due.
    """
    now = row_of(AroundRow, fetch(connection, LOOK_AROUND, {})).now
    left = left_behind(connection, kind, now) if rules_of(connection, kind).has_rules else None
    if left is not None:
        raise InvalidConfiguration(left)
    return now


def left_behind(connection: Connection, kind: str, since: int | None = None) -> str | None:
    """Return a sentence about due messages that a stream cannot lease; None if there are none.

    A queue with a limit or a pause gives messages to workers only.
    """
    due = value_of(fetch(connection, BACKLOG, {"kind": kind, "cap": _MOST_COUNTED, "now": since}))
    if not due:
        return None
    more = " or more" if due == _MOST_COUNTED else ""
    rules, name = rules_of(connection, kind), kind.rpartition("|")[0] or kind
    if rules.is_paused:
        why = f"the queue is paused; manage.py queueresume {name} resumes it."
    elif rules.has_rules:
        why = (
            "the queue has limits, which only workers keep; manage.py queuegroups limits "
            f"{name} lists them."
        )
    else:
        why = "other transactions hold them, or it was stopped before; try again."
    return f"Due messages of {kind!r} that were not taken: {due:,}{more}; {why}"
