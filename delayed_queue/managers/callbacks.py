"""The statements of callbacks: endpoints, hosts, slots and attempts, and the rows they return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, models

from delayed_queue import sql
from delayed_queue.statements import execute, fetch, fetch_all

MAX_PREFIXES: Final = 10_000

M = TypeVar("M", bound=models.Model)


class EndpointRow(NamedTuple):
    """An endpoint as callbacks need it; its secrets are sealed."""

    id: int
    prefix: str
    secret: str
    previous_secret: str
    rotated_at: int | None
    disabled_at: int | None
    per_second: float | None
    burst: int
    concurrency: int | None


class HostRow(NamedTuple):
    """For how many milliseconds an open host stays so, and somebody probes it."""

    open_for: int
    probed_for: int | None


class Beginning(NamedTuple):
    """Behind which message a bite of a backlog begins: its due time, its id."""

    due_at: int
    id: int = 0


class BiteRow(NamedTuple):
    """How many messages a bite put off, and the last it looked at; None: there were no more."""

    put_off: int
    due_at: int | None
    id: int | None


class AttemptRow(NamedTuple):
    """One callback as it is logged; ``started_at`` and ``duration`` in milliseconds."""

    key: str
    topic: str
    kind: str
    webhook_id: str
    attempt: int
    started_at: int
    duration: int
    status: int | None
    failure: str
    detail: str
    address: str
    excerpt: str
    is_ambiguous: bool
    endpoint_id: int | None


class LoggedRow(NamedTuple):
    """An attempt as it was logged."""

    id: int
    key: str
    topic: str
    webhook_id: str
    attempt: int
    started_at: int
    duration: int
    status: int | None
    failure: str
    detail: str
    address: str
    excerpt: str
    is_ambiguous: bool
    endpoint_id: int | None


class EndpointManager(models.Manager[M]):
    """The statements of endpoints and their slots, in the manner of MessageManager."""

    def of_origin(self, origin: str, *, using: str = DEFAULT_DB_ALIAS) -> list[EndpointRow]:
        """Return the endpoints of an origin."""
        rows = fetch(using, sql.ENDPOINTS, {"origin": origin, "limit": MAX_PREFIXES})
        return [EndpointRow._make(row) for row in rows]

    def add_once(
        self, origin: str, prefix: str, secret: str, *, now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> bool:  # fmt: skip
        """Add an endpoint with that sealed secret; return False when there is one."""
        params = {"origin": origin, "prefix": prefix, "secret": secret, "now": now}
        return bool(fetch(using, sql.ADD_ENDPOINT, params))

    def disable(
        self, endpoint_id: int, reason: str, *, now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> bool:  # fmt: skip
        """Send no more to the endpoint; return False, and change nothing, if it is so already."""
        params = {"id": endpoint_id, "reason": reason, "now": now}
        return bool(fetch(using, sql.DISABLE_ENDPOINT, params))

    def hold_slots(
        self, endpoint_id: int, holder: str, wanted: int, used: int, *, concurrency: int,
        patience: int, now: int | None = None, using: str = DEFAULT_DB_ALIAS,
    ) -> int:  # fmt: skip
        """Hold up to so many slots for ``patience`` ms; return how many, at least those in use."""
        params = {
            "id": endpoint_id, "holder": holder, "wanted": wanted, "used": used,
            "concurrency": concurrency, "patience": patience, "now": now,
        }  # fmt: skip
        lock = (sql.LOCK_SLOTS, {"id": endpoint_id})
        answers = fetch_all(using, [lock, (sql.HOLD_SLOTS, params)])
        held: int = answers[1][0][0]
        return held


class HostManager(models.Manager[M]):
    """The statements of the circuit breaker, in the manner of MessageManager."""

    def read(
        self, host: str, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> HostRow | None:
        """Return how long the host stays open; None when it is closed."""
        rows = fetch(using, sql.READ_HOST, {"host": host, "now": now})
        return HostRow._make(rows[0]) if rows else None

    def open(
        self, host: str, reason: str, *, pause: int, now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> bool:  # fmt: skip
        """Open the host for ``pause`` ms; return False, and change nothing, if it is open."""
        params = {"host": host, "reason": reason, "pause": pause, "now": now}
        return bool(fetch(using, sql.OPEN_HOST, params))

    def close(self, host: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
        """Close the host; return False, and change nothing, if it is closed."""
        return bool(fetch(using, sql.CLOSE_HOST, {"host": host}))

    def shut(
        self, host: str, reason: str, *, pause: int, now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> bool:  # fmt: skip
        """Open a host that failed once for ``pause`` ms; return False if it is for longer."""
        params = {"host": host, "reason": reason, "pause": pause, "now": now}
        return bool(fetch(using, sql.SHUT_HOST, params))

    def probe(
        self, host: str, by: str, *, patience: int, now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> bool:  # fmt: skip
        """Take the one probe of a half open host for ``patience`` ms; return whether it is ours."""
        params = {"host": host, "by": by, "patience": patience, "now": now}
        return bool(fetch(using, sql.PROBE_HOST, params))

    def end_probe(
        self, host: str, by: str, outcome: Literal["succeeded", "failed", "dropped"], *,
        pause: int, longest: int, now: int | None = None, using: str = DEFAULT_DB_ALIAS,
    ) -> bool:  # fmt: skip
        """Say what the probe found; return False when it has gone to another."""
        params = {
            "host": host, "by": by, "outcome": outcome, "pause": pause, "longest": longest,
            "now": now,
        }  # fmt: skip
        return bool(fetch(using, sql.END_PROBE, params))

    def put_off_backlog(
        self, host: str, kind: str, prefixes: Sequence[str], after: Beginning, *, limit: int,
        ahead: int, spread: int, half: int, delay: int | None = None, now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> BiteRow | None:  # fmt: skip
        """Put off what is due of the kind under these beginnings of urls, of ``limit`` messages.

        Until the host's pause is over or ``delay`` ms from now, whichever is later, and over the
        ``spread`` in ms behind that: the first half of it takes ``half`` messages, of which
        ``ahead`` were put off before. Returns None, and has changed nothing, if another does it
        at this moment, or if the host is not open and there is no delay.
        """
        params = {
            "host": host, "kind": kind, "prefixes": list(prefixes), "after": after.due_at,
            "after_id": after.id, "limit": limit, "ahead": ahead, "spread": spread, "half": half,
            "delay": delay, "now": now,
        }  # fmt: skip
        rows = fetch(using, sql.PUT_OFF_BACKLOG, params)
        return BiteRow._make(rows[0]) if rows else None


class AttemptManager(models.Manager[M]):
    """The statements of the log of attempts, in the manner of MessageManager."""

    def add(self, rows: Sequence[AttemptRow], *, using: str = DEFAULT_DB_ALIAS) -> int:
        """Log many attempts in one statement; return how many."""
        names = (
            "keys", "topics", "kinds", "webhook_ids", "attempts", "started_ats", "durations",
            "statuses", "failures", "details", "addresses", "excerpts", "are_ambiguous",
            "endpoint_ids",
        )  # fmt: skip
        columns: list[list[Any]] = [list(each) for each in zip(*rows, strict=True)]
        return execute(using, sql.ADD_ATTEMPTS, dict(zip(names, columns, strict=True)))

    def of_job(
        self, key: str, topic: str | None = None, *, after: int = 0, limit: int = 100,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[LoggedRow]:  # fmt: skip
        """Return attempts for the key, of one topic or of all."""
        params = {"key": key, "topic": topic, "after": after, "limit": limit}
        return [LoggedRow._make(row) for row in fetch(using, sql.ATTEMPTS_OF_JOB, params)]

    def prune(
        self, age: int, limit: int, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> int:
        """Delete up to ``limit`` attempts older than ``age`` ms; return how many."""
        return execute(using, sql.PRUNE_ATTEMPTS, {"age": age, "limit": limit, "now": now})
