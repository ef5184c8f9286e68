"""The options of the data source, checked as a whole before anything is connected."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Final

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from delayed_queue.codecs import check_kind, codec_named, kind_of
from delayed_queue.durations import check_duration, within
from delayed_queue.exceptions import InvalidConfiguration, suggest
from delayed_queue.messages import MILLISECOND
from delayed_queue.spark.settings import TASKS, TASKS_EACH

MAX_JOB_LENGTH: Final = 200
# Partitions if the number of parallel tasks is unknown.
_UNTOLD: Final = 8
# Spark's own options, which it passes to every sink.
_OF_SPARK: Final = frozenset({
    "asyncprogresstrackingenabled", "asyncprogresstrackingcheckpointintervalms",
    "checkpointlocation", "path", "queryname",
})  # fmt: skip
# Properties of a table in Spark's catalog, which come with its options.
_OF_CATALOG: Final = frozenset({
    "collation", "comment", "external", "is_managed_location", "location", "owner", "provider",
    "serialization.format", "table_type",
})  # fmt: skip
_MAX_LEASE: Final = timedelta(days=3650)


_OF_TABLES: Final = (
    "A table of Spark SQL does not pass its OPTIONS to a Python source; add them to each use: "
    "SELECT ... FROM t WITH (queue='orders'), INSERT INTO t WITH (queue='orders') ..."
)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a reader or a writer; they hold no password, so pickling is safe."""

    kind: str | None = None
    codec: str = "json"
    dsn: str | None = None
    dsnFunction: str | None = None  # Spark's spelling of options
    driver: str = "auto"
    connections: int | None = None

    mode: str = "offer"
    job: str | None = None
    batch: int | None = None
    onFinishedJob: str = "error"
    atomic: bool = False
    chunk: int = 20_000

    numPartitions: int | None = None
    snapshot: str | None = None
    allQueues: bool = False
    pushFilters: bool = False

    maxMessagesPerTrigger: int = 100_000
    rowsPerTask: int = 1_000
    lease: int = 600_000
    leaseConnections: int = 2
    prefetch: bool = True

    @property
    def partitions(self) -> int:
        """The maximum of tasks of a read: three per parallel task, so that none runs long."""
        if self.numPartitions is not None:
            return self.numPartitions
        return TASKS_EACH * int(os.environ[TASKS]) if os.environ.get(TASKS) else _UNTOLD

    @property
    def required_kind(self) -> str:
        """The kind; raises InvalidConfiguration without one."""
        if self.kind is None:
            raise InvalidConfiguration(
                "Name the queue: .option('queue', 'orders'), or .option('kind', 'orders|json'). "
                f"Rows that are written may have a column queue or kind instead. {_OF_TABLES}"
            )
        return self.kind

    def check_readable(self) -> None:
        """Raise InvalidConfiguration without a queue or ``allQueues``."""
        if self.kind is None and not self.allQueues:
            raise InvalidConfiguration(
                "Name the queue to read: .option('queue', 'orders'), .option('kind', "
                f"'orders|json'), or .option('allQueues', 'true') for all of them. {_OF_TABLES}"
            )


def parse_options(given: Mapping[str, str]) -> Options:
    """Return the options, or raise InvalidConfiguration for the first wrong one."""
    known = {each.name.lower(): each.name for each in fields(Options)} | {"queue": "queue"}
    values: dict[str, Any] = {}
    for name, text in given.items():
        _refuse_unsafe(name, str(text))
        if name.lower() in _OF_SPARK | _OF_CATALOG or name.lower().startswith("option."):
            continue
        if name.lower() not in known:
            raise InvalidConfiguration(_unknown(name, sorted(known.values())))
        values[known[name.lower()]] = _parsed(known[name.lower()], str(text))
    values["kind"] = _kind(values.pop("queue", None), values.get("kind"), values)
    options = Options(**values)
    if options.kind is not None and options.allQueues:
        raise InvalidConfiguration("Give a queue or the option allQueues, not both.")
    _refuse_secrets(options.dsn)
    return options


def _refuse_unsafe(name: str, text: str) -> None:
    if name.lower() == "asyncprogresstrackingenabled" and text.lower() != "false":
        raise InvalidConfiguration(
            "The option asyncProgressTrackingEnabled cannot be used with queues: a batch would "
            "be acknowledged before Spark has logged it as done."
        )


def _unknown(name: str, known: list[str]) -> str:
    close = suggest(name, known)
    hint = f"did you mean {close!r}?" if close else f"there are {', '.join(known)}."
    return f"The data source delayed_queue has no option {name!r}: {hint}"


def _kind(queue: str | None, kind: str | None, values: Mapping[str, Any]) -> str | None:
    if queue is not None and kind is not None:
        raise InvalidConfiguration("Give the option queue or the option kind, not both.")
    if queue is None:
        return None if kind is None else check_kind(kind)
    return check_kind(kind_of(check_kind(queue), codec_named(values.get("codec", "json"))))


# Parameters that libpq marks as passwords (password, sslpassword, oauth_client_secret), and keys
# that log in without a password.
_SECRETS: Final = frozenset(
    each.keyword.decode() for each in Conninfo.get_defaults() if each.dispchar == b"*"
) | {"scram_client_key", "scram_server_key"}


def _refuse_secrets(dsn: str | None) -> None:
    # Spark stores options in plans and pickles, and shows them.
    try:
        parts = conninfo_to_dict(dsn or "")
    except ProgrammingError:
        # Without the cause: libpq quotes the text that it could not parse, maybe the password.
        raise InvalidConfiguration("The option dsn is no connection string of libpq.") from None
    if secrets := sorted(_SECRETS & parts.keys()):
        raise InvalidConfiguration(
            f"The option dsn must not hold {secrets[0]}, for Spark shows its options. Put the "
            "whole string into the environment as DELAYED_QUEUE_DSN, a password into ~/.pgpass, "
            "or name a function that returns it: .option('dsnFunction', 'package.module:function')."
        )


def _flag(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError("true or false")
    return text.lower() == "true"


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return int(text)

    return parse


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return text

    return parse


def _duration(text: str) -> int:
    try:
        return check_duration("It", text, MILLISECOND, _MAX_LEASE) // MILLISECOND
    except InvalidConfiguration:
        raise ValueError(f"{within(MILLISECOND, _MAX_LEASE)}, as in '10m'") from None


def _job(text: str) -> str:
    if not 1 <= len(text) <= MAX_JOB_LENGTH or "\x00" in text:
        raise ValueError(f"1 to {MAX_JOB_LENGTH} characters")
    return text


def _function(text: str) -> str:
    module, _, name = text.partition(":")
    if not name.isidentifier() or not all(each.isidentifier() for each in module.split(".")):
        raise ValueError("a function, as in 'package.module:function'")
    return text


_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "codec": _one_of("json", "text", "bytes"),
    "dsnFunction": _function,
    "driver": _one_of("auto", "adbc", "psycopg"),
    "connections": _whole(1, 100_000),
    "mode": _one_of("offer", "upsert"),
    "job": _job,
    "batch": _whole(1, 2**63 - 1),
    "onFinishedJob": _one_of("error", "skip"),
    "atomic": _flag,
    "chunk": _whole(1, 1_000_000),
    "numPartitions": _whole(1, 10_000),
    "allQueues": _flag,
    "pushFilters": _flag,
    "maxMessagesPerTrigger": _whole(1, 10_000_000),
    "rowsPerTask": _whole(1, 1_000_000),
    "lease": _duration,
    "leaseConnections": _whole(1, 64),
    "prefetch": _flag,
}


def _parsed(name: str, text: str) -> Any:
    try:
        return _PARSERS.get(name, str)(text)
    except InvalidConfiguration:
        raise
    except ValueError as error:
        raise InvalidConfiguration(f"The option {name} is {text!r}: it must be {error}.") from None
