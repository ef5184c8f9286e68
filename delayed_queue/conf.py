"""The settings dict ``DELAYED_QUEUE`` as one frozen, validated dataclass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

from django.conf import settings
from django.core.signals import setting_changed

from delayed_queue.exceptions import DelayedQueueError, InvalidConfiguration, suggest
from delayed_queue.retries import Backoff, RetryPolicy

SETTING: Final = "DELAYED_QUEUE"
INSTRUMENT_METHODS: Final = ("offering", "handling")
MAX_LEASE: Final = timedelta(days=3650)
MAX_INTERVAL: Final = timedelta(days=1)
_MILLISECOND: Final = timedelta(milliseconds=1)
KIB: Final = 1024
MIB: Final = 1024 * KIB


class Rule(NamedTuple):
    """A rule for a value: a test, and the sentence for values that fail it."""

    accepts: Callable[[Any], bool]
    hint: str


def each(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a test of lists and tuples, every member of which passes the test."""
    return lambda value: isinstance(value, list | tuple) and all(map(accepts, value))


def between(least: timedelta, most: timedelta) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, timedelta) and least <= value <= most


def count_to(most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and 1 <= value <= most


def is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def counts(least: int, most: int) -> Rule:
    return Rule(
        lambda value: type(value) is int and least <= value <= most,
        f"It must be an int from {least} to {most}.",
    )


class Section(Protocol):
    """A part of the settings dict that an app registers by ``conf.register_section``."""

    def made(self, value: Any) -> Any:
        """Return the section's frozen object for a dict of it, or for such an object."""

    def wrongs(self, value: Any) -> Iterator[tuple[str, str]]:
        """Yield (what is wrong, what to do) for each problem; never a value: some are secret."""


class RuledSection(NamedTuple):
    """A section that is a dataclass, with a rule for each key."""

    cls: type[Any]
    rules: Mapping[str, Rule]

    def made(self, value: Any) -> Any:
        return value if isinstance(value, self.cls) else self.cls(**value)

    def wrongs(self, value: Any) -> Iterator[tuple[str, str]]:
        if isinstance(value, self.cls):
            value = {field.name: getattr(value, field.name) for field in fields(self.cls)}
        if not isinstance(value, dict):
            yield " must be a dict.", "Write {…} with the keys of the section."
            return
        for key, held in value.items():
            if key not in self.rules:
                yield f" has an unknown key {key!r}.", self._suggestion(key)
            elif not self.rules[key].accepts(held):
                yield f"[{key!r}] cannot be used.", self.rules[key].hint

    def _suggestion(self, key: Any) -> str:
        close = suggest(key, self.rules)
        return f"Did you mean {close!r}?" if close else f"Known keys: {', '.join(self.rules)}."


_sections: Final[dict[str, Section]] = {}


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Defaults of queues and workers: the keys of ``DELAYED_QUEUE``, in upper case.

    Apps add sections of their own: ``register_section``.

    ``LEASE_DURATION``: how long a polled message stays exclusive.
    ``POLL_INTERVAL``: the longest a sleeping poller goes without looking.
    ``RETRY_POLICY``: what happens after a failed attempt where the queue or handler says nothing.
    ``BACKOFF``: how calls are repeated while the database is away.
    ``NOTIFY``: wake sleeping pollers with LISTEN/NOTIFY; False polls only.
    ``PREPARE``: use prepared statements; None decides by the database alias: not where its
    ``DISABLE_SERVER_SIDE_CURSORS`` says that a transaction pooler is in between.
    ``CONCURRENCY``: handler threads of a worker.
    ``ASYNC_CONCURRENCY``: how many ``async def`` handlers a worker runs at a time.
    ``BATCH_SIZE``: the most messages that one claim of a worker leases.
    ``SHUTDOWN_TIMEOUT``: how long a stopping worker waits for handlers in flight.
    ``WATCHDOG``: how long a worker's claim loop may stand still before its process is replaced.
    ``HANDLERS_MODULE``: the module of each installed app that is imported for its handlers.
    ``CRON``: schedules that workers keep: ``CronEntry`` objects, or dicts of their arguments.
    ``INSTRUMENTS``: what is called around offers and handlers: objects, or dotted paths to
    them or to their classes.
    ``DEAD_LETTER_RETENTION``: how long dead letters are kept, which workers see to; None keeps
    them.
    ``SAMPLE_RETENTION``: how long samples of queues are kept; None takes none.
    ``LOG_ERRORS``: log a handler's failure with its error and traceback, which may hold what the
    payload held; None does so where ``DEBUG`` is on.
    """

    LEASE_DURATION: timedelta = timedelta(minutes=5)
    POLL_INTERVAL: timedelta = timedelta(seconds=3)
    RETRY_POLICY: RetryPolicy = field(default_factory=RetryPolicy.exponential)
    BACKOFF: Backoff = field(default_factory=Backoff)
    NOTIFY: bool = True
    PREPARE: bool | None = None
    CONCURRENCY: int = 8
    ASYNC_CONCURRENCY: int = 100
    BATCH_SIZE: int = 500
    SHUTDOWN_TIMEOUT: timedelta = timedelta(seconds=30)
    WATCHDOG: timedelta = timedelta(minutes=2)
    HANDLERS_MODULE: str = "handlers"
    CRON: Sequence[Any] = ()
    INSTRUMENTS: Sequence[Any] = ()
    DEAD_LETTER_RETENTION: timedelta | None = timedelta(days=30)
    SAMPLE_RETENTION: timedelta | None = timedelta(days=8)
    LOG_ERRORS: bool | None = None


def check_lease(duration: Any) -> timedelta:
    """Return the lease duration, or refuse what is not from 1 ms to ten years (Q20)."""
    if not isinstance(duration, timedelta) or not _MILLISECOND <= duration <= MAX_LEASE:
        raise InvalidConfiguration(
            f"A lease duration is a timedelta from 1 ms to {MAX_LEASE.days} days, not {duration!r}."
        )
    return duration


def check_interval(interval: Any) -> timedelta:
    """Return the poll interval, or refuse what is not from 1 ms to one day."""
    if not isinstance(interval, timedelta) or not _MILLISECOND <= interval <= MAX_INTERVAL:
        raise InvalidConfiguration(
            f"A poll interval is a timedelta from 1 ms to one day, not {interval!r}."
        )
    return interval


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the settings, and what to do about it."""

    key: str
    message: str
    hint: str


def find_problems(configured: Any) -> list[Problem]:
    """Return everything wrong with a DELAYED_QUEUE dict; an empty list when it can be used."""
    if not isinstance(configured, dict):
        return [Problem(SETTING, f"{SETTING} must be a dict.", f"Write {SETTING} = {{…}}.")]
    known = {each.name for each in fields(QueueSettings)}
    all_known = known | _sections.keys()
    problems = [_unknown(key, all_known) for key in configured if key not in all_known]
    for key, value in configured.items():
        if key in _sections:
            problems += _of_section(key, value)
            continue
        wrong = _wrong(key, value) if key in known else None
        if wrong is not None:
            problems.append(Problem(key, f"{SETTING}[{key!r}] is {value!r}.", wrong))
    return problems


def _unknown(key: Any, known: set[str]) -> Problem:
    close = suggest(key, known)
    hint = f"Did you mean {close!r}?" if close else f"Known keys: {', '.join(sorted(known))}."
    if not close:
        hint += " The section of an app is known where the app is in INSTALLED_APPS."
    return Problem(str(key), f"{SETTING} has an unknown key {key!r}.", hint)


def _of_section(key: str, value: Any) -> list[Problem]:
    return [
        Problem(key, f"{SETTING}[{key!r}]{wrong}", hint)
        for wrong, hint in _sections[key].wrongs(value)
    ]


def _is_count(value: Any, most: int) -> bool:
    return type(value) is int and 1 <= value <= most


def is_instrument(value: Any) -> bool:
    return all(callable(getattr(value, name, None)) for name in INSTRUMENT_METHODS)


def _are_instruments(value: Any) -> bool:
    """Return whether each is one, or a path to one; what a path leads to is for a check to see.

    Not for this: the module behind it may be importing the very code that asks.
    """
    return isinstance(value, list | tuple) and all(
        _is_dotted(each) if isinstance(each, str) else is_instrument(each) for each in value
    )


def _is_dotted(path: str) -> bool:
    return "." in path and all(name.isidentifier() for name in path.split("."))


# Functions that raise DelayedQueueError for a wrong value, by key.
_CHECKED: Final[dict[str, Callable[[Any], object]]] = {
    "LEASE_DURATION": check_lease,
    "POLL_INTERVAL": check_interval,
}


def _wrong(key: str, value: Any) -> str | None:
    """Return what the value must be, or None when it is."""
    try:
        if key in _CHECKED:
            _CHECKED[key](value)
    except DelayedQueueError as error:
        return str(error)
    fits, rule = _rules(value).get(key, (True, ""))
    return None if fits else rule


def _rules(value: Any) -> dict[str, tuple[bool, str]]:
    """Return by key whether the value fits it, and what it must be."""
    positive = isinstance(value, timedelta) and value >= timedelta(0)
    return {
        "RETRY_POLICY": (isinstance(value, RetryPolicy), "It must be a RetryPolicy."),
        "BACKOFF": (isinstance(value, Backoff), "It must be a Backoff."),
        "NOTIFY": (isinstance(value, bool), "It must be True or False."),
        "PREPARE": (value is None or isinstance(value, bool), "It must be True, False or None."),
        "DEAD_LETTER_RETENTION": (
            value is None or (isinstance(value, timedelta) and value >= timedelta(hours=1)),
            "It must be a timedelta of an hour or more, or None.",
        ),
        "SAMPLE_RETENTION": (
            value is None or (isinstance(value, timedelta) and value >= timedelta(days=1)),
            "It must be a timedelta of a day or more, or None.",
        ),
        "LOG_ERRORS": (value is None or isinstance(value, bool), "It must be True, False or None."),
        "CONCURRENCY": (_is_count(value, 1000), "It must be an int from 1 to 1000."),
        "ASYNC_CONCURRENCY": (_is_count(value, 10_000), "It must be an int from 1 to 10000."),
        "BATCH_SIZE": (_is_count(value, 10_000), "It must be an int from 1 to 10000."),
        "SHUTDOWN_TIMEOUT": (positive, "It must be a timedelta of 0 or more."),
        "WATCHDOG": (
            isinstance(value, timedelta) and value >= timedelta(seconds=10),
            "It must be a timedelta of 10 seconds or more.",
        ),
        "HANDLERS_MODULE": (
            isinstance(value, str) and value.isidentifier(),
            "It must be the name of a module, as in 'handlers'.",
        ),
        "INSTRUMENTS": (
            _are_instruments(value),
            "It must be a list of dotted paths, as in 'shop.tracing.Instrument', or of objects "
            "with offering() and handling().",
        ),
    }


@lru_cache(maxsize=1)
def get_settings() -> QueueSettings:
    """Return the settings in force, or raise InvalidConfiguration naming all that is wrong."""
    configured = _configured()
    return QueueSettings(**{key: configured[key] for key in configured if key not in _sections})


def logs_errors() -> bool:
    """Return whether handlers' failures are logged with their errors."""
    chosen = get_settings().LOG_ERRORS
    return settings.DEBUG if chosen is None else chosen


@lru_cache
def section(key: str) -> Any:
    """Return a registered section in force; raises as ``get_settings`` does."""
    return _sections[key].made(_configured().get(key, {}))


def register_section(key: str, registered: Section) -> None:
    """Make a key of ``DELAYED_QUEUE`` known; for an app's module ``conf``, loaded with the app."""
    _sections[key] = registered
    _forget(setting=SETTING)


def register_check(key: str, check: Callable[[Any], object]) -> None:
    """Add the check of a key whose package this module must not import."""
    _CHECKED[key] = check


def _configured() -> dict[str, Any]:
    configured: dict[str, Any] = getattr(settings, SETTING, {})
    problems = find_problems(configured)
    if problems:
        raise InvalidConfiguration(" ".join(f"{each.message} {each.hint}" for each in problems))
    return configured


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == SETTING:
        get_settings.cache_clear()
        section.cache_clear()


setting_changed.connect(_forget, dispatch_uid="delayed_queue.conf")
