"""The settings dict ``DELAYED_QUEUE`` as one frozen, validated dataclass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import lru_cache
from typing import Annotated, Any, Final, NamedTuple, Protocol, get_type_hints

from django.conf import settings
from django.core.signals import setting_changed

from delayed_queue.durations import FORMS, check_duration, parse_duration, within
from delayed_queue.exceptions import DelayedQueueError, InvalidConfiguration, did_you_mean
from delayed_queue.retries import Backoff, RetryPolicy

SETTING: Final = "DELAYED_QUEUE"
INSTRUMENT_METHODS: Final = ("offering", "handling")
MAX_LEASE: Final = timedelta(days=3650)
MAX_INTERVAL: Final = timedelta(days=1)
_MILLISECOND: Final = timedelta(milliseconds=1)
KIB: Final = 1024
MIB: Final = 1024 * KIB


class Rule(NamedTuple):
    """A rule for a value: a test, the sentence for values that fail it, and how to read it."""

    accepts: Callable[[Any], bool]
    hint: str
    read: Callable[[Any], Any] = lambda value: value


def each(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a test of lists and tuples, every member of which passes the test."""
    return lambda value: isinstance(value, list | tuple) and all(map(accepts, value))


def lasting(least: timedelta, most: timedelta = timedelta.max) -> Rule:
    """Return the rule of a duration, in any form that ``parse_duration`` reads."""

    def accepts(value: Any) -> bool:
        try:
            return least <= parse_duration(value) <= most
        except InvalidConfiguration:
            return False

    return Rule(accepts, f"It must be {within(least, most)}: {FORMS}.", parse_duration)


def count_to(most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and 1 <= value <= most


def is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def optional(rule: Rule) -> Rule:
    """Return a rule that also accepts None."""
    hint = f"{rule.hint.removesuffix('.')}, or None."
    return Rule(
        lambda value: value is None or rule.accepts(value), hint,
        lambda value: None if value is None else rule.read(value),
    )  # fmt: skip


def counts(least: int, most: int) -> Rule:
    return Rule(
        lambda value: type(value) is int and least <= value <= most,
        f"It must be an int from {least} to {most}.",
    )


class Section(Protocol):
    """A part of the settings dict that an app registers with ``register_section``."""

    def made(self, value: Any) -> Any:
        """Return the section's frozen object for a dict, or the object itself."""

    def wrongs(self, value: Any) -> Iterator[tuple[str, str]]:
        """Yield (problem, hint) for each problem; never a value, because some are secret."""


class RuledSection(NamedTuple):
    """A section that is a dataclass, with a rule for each key."""

    cls: type[Any]
    rules: Mapping[str, Rule]

    def made(self, value: Any) -> Any:
        given = value if isinstance(value, dict) else _fields_of(value)
        return self.cls(**{key: self.rules[key].read(each) for key, each in given.items()})

    def wrongs(self, value: Any) -> Iterator[tuple[str, str]]:
        if isinstance(value, self.cls):
            value = _fields_of(value)
        if not isinstance(value, dict):
            yield " must be a dict.", "Write {…} with the keys of the section."
            return
        for key, held in value.items():
            if key not in self.rules:
                known = f"Known keys: {', '.join(self.rules)}."
                hint = did_you_mean(key, self.rules).strip() or known
                yield f" has an unknown key {key!r}.", hint
            elif not self.rules[key].accepts(held):
                yield f"[{key!r}] cannot be used.", self.rules[key].hint


def _fields_of(section: Any) -> dict[str, Any]:
    return {field.name: getattr(section, field.name) for field in fields(section)}


def rules_of(cls: type) -> dict[str, Rule]:
    """Return the rules in the annotations of a section's fields, by key."""
    hints = get_type_hints(cls, include_extras=True)
    return {key: hint.__metadata__[0] for key, hint in hints.items()}


_sections: Final[dict[str, Section]] = {}


def is_instrument(value: Any) -> bool:
    return all(callable(getattr(value, name, None)) for name in INSTRUMENT_METHODS)


def _names_instrument(value: Any) -> bool:
    """True for an instrument or a dotted path; a system check imports the path later.

    Not here: the module behind it may be importing the caller.
    """
    return _is_dotted(value) if isinstance(value, str) else is_instrument(value)


def _is_dotted(path: str) -> bool:
    return "." in path and all(name.isidentifier() for name in path.split("."))


_FLAG: Final = Rule(is_flag, "It must be True or False.")
_LEASE: Final = lasting(_MILLISECOND, MAX_LEASE)
_INTERVAL: Final = lasting(_MILLISECOND, MAX_INTERVAL)
_INSTRUMENTS: Final = Rule(
    each(_names_instrument),
    "It must be a list of dotted paths, as in 'shop.tracing.Instrument', or of objects "
    "with offering() and handling().",
)


def _of(cls: type) -> Rule:
    return Rule(lambda value: isinstance(value, cls), f"It must be a {cls.__name__}.")


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Defaults of queues and workers: the keys of ``DELAYED_QUEUE``, in upper case.

    The page docs/reference/settings.md describes each. Apps add sections of their own:
    ``register_section``.
    """

    LEASE_DURATION: Annotated[timedelta, _LEASE] = timedelta(minutes=5)
    POLL_INTERVAL: Annotated[timedelta, _INTERVAL] = timedelta(seconds=3)
    RETRY_POLICY: Annotated[RetryPolicy, _of(RetryPolicy)] = field(
        default_factory=RetryPolicy.exponential
    )
    BACKOFF: Annotated[Backoff, _of(Backoff)] = field(default_factory=Backoff)
    NOTIFY: Annotated[bool, _FLAG] = True
    PREPARE: Annotated[bool | None, optional(_FLAG)] = None
    CONCURRENCY: Annotated[int, counts(1, 1000)] = 8
    ASYNC_CONCURRENCY: Annotated[int, counts(1, 10_000)] = 100
    BATCH_SIZE: Annotated[int, counts(1, 10_000)] = 500
    SHUTDOWN_TIMEOUT: Annotated[timedelta, lasting(timedelta(0))] = timedelta(seconds=30)
    WATCHDOG: Annotated[timedelta, lasting(timedelta(seconds=10))] = timedelta(minutes=2)
    HANDLER_SLOW: Annotated[timedelta | None, optional(lasting(timedelta(seconds=1)))] = timedelta(
        minutes=5
    )
    QUEUE_LATE: Annotated[timedelta, lasting(timedelta(0))] = timedelta(minutes=1)
    CRON: Sequence[Any] = ()
    INSTRUMENTS: Annotated[Sequence[Any], _INSTRUMENTS] = ()
    DEAD_LETTER_RETENTION: Annotated[timedelta | None, optional(lasting(timedelta(hours=1)))] = (
        timedelta(days=30)
    )
    SAMPLE_RETENTION: Annotated[timedelta | None, optional(lasting(timedelta(days=1)))] = timedelta(
        days=8
    )
    LOG_ERRORS: Annotated[bool | None, optional(_FLAG)] = None


_HINTS: Final = get_type_hints(QueueSettings, include_extras=True)
# Checks that raise DelayedQueueError for a wrong value, by key; packages add their own.
_checks: Final[dict[str, Callable[[Any], object]]] = {}


def check_lease(duration: Any) -> timedelta:
    """Return the lease duration, or refuse one that is not from 1 ms to ten years (Q20)."""
    return check_duration("The lease duration", duration, _MILLISECOND, MAX_LEASE)


def check_interval(interval: Any) -> timedelta:
    """Return the poll interval, or refuse one that is not from 1 ms to one day."""
    return check_duration("The poll interval", interval, _MILLISECOND, MAX_INTERVAL)


@dataclass(frozen=True, slots=True)
class Problem:
    """A wrong key or value of the settings, and how to correct it."""

    key: str
    message: str
    hint: str


def find_problems(configured: Any) -> list[Problem]:
    """Return all problems of a DELAYED_QUEUE dict."""
    if not isinstance(configured, dict):
        return [Problem(SETTING, f"{SETTING} must be a dict.", f"Write {SETTING} = {{…}}.")]
    all_known = {*_HINTS, *_sections}
    problems = [_unknown(key, all_known) for key in configured if key not in all_known]
    for key, value in configured.items():
        if key in _sections:
            problems += [
                Problem(key, f"{SETTING}[{key!r}]{wrong}", hint)
                for wrong, hint in _sections[key].wrongs(value)
            ]
        elif key in _HINTS and (wrong := _wrong(key, value)):
            problems.append(Problem(key, f"{SETTING}[{key!r}] is {value!r}.", wrong))
    return problems


def _unknown(key: Any, known: set[str]) -> Problem:
    hint = did_you_mean(key, known).strip() or (
        f"Known keys: {', '.join(sorted(known))}. The section of an app is known where the app is "
        "in INSTALLED_APPS."
    )
    return Problem(str(key), f"{SETTING} has an unknown key {key!r}.", hint)


def _wrong(key: str, value: Any) -> str:
    """Return what the value must be, or an empty text if it is right."""
    try:
        if key in _checks:
            _checks[key](value)
    except DelayedQueueError as error:
        return str(error)
    rules: tuple[Rule, ...] = getattr(_HINTS[key], "__metadata__", ())
    return next((rule.hint for rule in rules if not rule.accepts(value)), "")


@lru_cache(maxsize=1)
def get_settings() -> QueueSettings:
    """Return the settings in force, or raise InvalidConfiguration with all problems."""
    configured = _configured()
    own = {key: value for key, value in configured.items() if key not in _sections}
    return QueueSettings(**{key: _read(key, value) for key, value in own.items()})


def _read(key: str, value: Any) -> Any:
    for rule in getattr(_HINTS[key], "__metadata__", ()):
        value = rule.read(value)
    return value


def logs_errors() -> bool:
    """Return whether handlers' failures are logged with their errors."""
    chosen = get_settings().LOG_ERRORS
    return settings.DEBUG if chosen is None else chosen


@lru_cache
def section(key: str) -> Any:
    """Return a registered section in force; raises as ``get_settings`` does."""
    return _sections[key].made(_configured().get(key, {}))


def register_section(key: str, registered: Section) -> None:
    """Add a key of ``DELAYED_QUEUE``; for an app's module ``conf``, loaded with the app."""
    _sections[key] = registered
    _forget(setting=SETTING)


def register_check(key: str, check: Callable[[Any], object]) -> None:
    """Add the check of a key; for packages that this module must not import."""
    _checks[key] = check


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
