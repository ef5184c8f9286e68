"""The registry of handlers: the function of each queue, and its possible outcomes."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from delayed_queue.codecs import Codec, check_kind, codec_named, kind_of
from delayed_queue.durations import ZERO, Duration, check_duration
from delayed_queue.exceptions import HandlerNotFound, InvalidConfiguration, did_you_mean
from delayed_queue.messages import Envelope, check_claim
from delayed_queue.retries import Groups, RetryPolicy

MAX_ERROR_LENGTH: Final = 10_000
# Fates of a message that has expired.
ON_EXPIRED: Final = ("delete", "dead")
# At most N messages in one call of a handler with many=True.
MOST_IN_BATCH: Final = 10_000
HandlerFunction = Callable[[Any], Any]
F = TypeVar("F", bound=HandlerFunction)
# Annotations of one message, and of many; quoted ones and aliases of the module are resolved here
# by name only.
QUOTES: Final = "'\""
_ONE: Final = re.compile(r"""['"]?(?:\w+\.)*Envelope['"]?""")
_MANY: Final = re.compile(
    r"""['"]?(?:(?:\w+\.)*Batch|(?:\w+\.)*(?:Sequence|Iterable|Collection|list|tuple)\[.*\])['"]?""",
    re.IGNORECASE,
)


class HandlerSignal(Exception):
    """Base of the exceptions that give a handler an outcome other than done or failed."""


class Snooze(HandlerSignal):
    """Deliver the message again after the delay; the attempt does not count as a failure.

    ``rest``: how long this worker claims nothing more of the queue, because a resource that all
    its messages need is unavailable. Other workers are not affected.
    """

    def __init__(self, delay: Duration, *, rest: Duration = ZERO) -> None:
        self.delay = check_duration("The delay of Snooze", delay, most=timedelta.max)
        self.rest = check_duration("The rest of Snooze", rest, most=timedelta.max)
        super().__init__(f"snoozed for {self.delay}")


class Retry(HandlerSignal):
    """Deliver the message again after this delay instead of the policy's; the attempt failed.

    For handlers that know the delay, from a ``Retry-After`` header or the message itself. The
    policy still limits the attempts. ``error`` is stored as the message's last error.
    """

    def __init__(self, delay: Duration, error: str = "") -> None:
        self.delay = check_duration("The delay of Retry", delay, most=timedelta.max)
        super().__init__(error or f"to be retried in {self.delay}")


class Reject(HandlerSignal):
    """Move the message to the dead letters at once, because a retry would not help.

    ``error`` is stored as the message's last error.
    """

    def __init__(self, reason: str, error: str = "") -> None:
        if not isinstance(reason, str):
            raise InvalidConfiguration(f"Reject needs a reason in words, not {reason!r}.")
        super().__init__(reason)
        self.reason = reason
        self.error = error


@dataclass(frozen=True, slots=True)
class Verdict:
    """The fate of a message whose handler raised: due again after a delay, or dead."""

    delay: timedelta | None
    reason: str = ""
    error: str = ""
    counts: bool = True

    @property
    def is_dead(self) -> bool:
        return self.delay is None


def judge(error: BaseException, attempt: int, policy: RetryPolicy) -> Verdict:
    """Return the verdict on a failed attempt: a signal's own answer, else the policy's."""
    if isinstance(error, Snooze):
        return Verdict(error.delay, counts=False)
    if isinstance(error, Reject):
        return Verdict(None, error.reason, storable(error.error))
    delay = policy.delay_after(attempt)
    reason = f"attempts exhausted: {type(error).__name__}" if delay is None else ""
    if isinstance(error, Retry):
        # The text alone: a traceback would only show the line that raised Retry.
        return Verdict(None if delay is None else error.delay, reason, storable(str(error)))
    return Verdict(delay, reason, error_text(error))


def attempts_used_up(envelope: Envelope) -> Reject:
    """Return the failure of a claimed message that has no attempt left.

    Its last attempt crashed, or the database refused its dead letter; the last error has the cause.
    """
    crashed = "crashed: attempts used up without an answer"
    return Reject(crashed if envelope.is_retaken else "attempts exhausted")


def error_text(error: BaseException) -> str:
    """Return the traceback; of a long one, the end."""
    try:
        lines = traceback.format_exception(error)
    # Printing calls the exception's own methods.
    except Exception as failure:
        cls = type(error)
        lines = [f"{cls.__module__}.{cls.__qualname__}, which cannot be printed: {failure!r}\n"]
    return storable("".join(lines))


def storable(text: str) -> str:
    """Return the end of the text, at most 10,000 characters, as PostgreSQL can store it."""
    clean = text[-MAX_ERROR_LENGTH:].replace("\x00", "\ufffd")
    return clean.encode("utf-8", "replace").decode("utf-8")


class Manner(NamedTuple):
    """Where one message is handled, on the event loop or in a thread, and its time limit."""

    is_async: bool
    timeout: float | None = None


# A message, the exception of its handler, and the verdict.
Failure = tuple[Envelope, BaseException, Verdict]


class Treatment(Protocol):
    """An app's own handling of the messages of a queue, which may be for many functions."""

    def manner(self, envelope: Envelope) -> Manner:
        """Return where and how long to handle the message; called after its claim."""

    async def acall(self, envelope: Envelope) -> object:
        """Handle a message whose manner is asynchronous; the handler's function does the others."""

    def judge(self, error: BaseException, envelope: Envelope) -> Verdict | None:
        """Return the verdict on a failed message; None leaves it to the policy."""

    def unwanted(self, envelopes: Sequence[Envelope], using: str) -> Iterable[Envelope]:
        """Return the messages in flight that should stop although their lease holds.

        Called in the thread that renews leases.
        """

    def acknowledging(self, done: Sequence[Envelope]) -> tuple[str, dict[str, Any]] | None:
        """Return a statement that deletes the messages still under their lease and returns ids.

        It also writes the app's own rows about them. None leaves the deletion to the worker. Called
        again if the statement's result was lost.
        """

    def recording(self, failed: Sequence[Failure]) -> list[tuple[str, dict[str, Any]]]:
        """Return statements to run first in the transaction that settles failed messages.

        Each must return rows, which are ignored, and write only about messages that are still under
        their lease. Called again if the transaction's result was lost.
        """

    def refusal(self, payload: Any) -> str:
        """Return why a payload that an operator edited cannot be handled; empty if it can."""

    def kinds(self) -> Sequence[str]:
        """Return the kinds to claim from, the most urgent first; called before each claim."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A function, and the options with which a worker calls it."""

    queue: str
    function: HandlerFunction
    codec: Codec
    kind: str
    retry: RetryPolicy | None = None
    lease: timedelta | None = None
    timeout: timedelta | None = None
    transactional: bool = False
    batch_size: int | None = None
    claim: str = "fast"
    groups: Groups | None = None
    on_expired: str = "delete"
    # It receives a batch, after a wait of ``linger`` for a fuller one; ``split`` it when it fails.
    many: bool = False
    linger: timedelta | None = None
    split: bool = True
    # For a queue whose messages are handled, judged and settled in different ways.
    treatment: Treatment | None = field(default=None, compare=False)

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @property
    def path(self) -> str:
        """The function as ``module.name``, or the name of its treatment."""
        if self.treatment is not None:
            return str(self.treatment)
        return f"{self.function.__module__}.{self.function.__qualname__}"


@dataclass(frozen=True, slots=True)
class Source:
    """Handlers of queues that come and go while workers run.

    Each worker calls ``handlers`` with a database alias, every few seconds and at a ``NOTIFY`` for
    the kind ``wake_channel``, in the thread that claims: it must be quick. A known handler is kept
    while the new one compares equal. The queues take turns, and each leaves room for the others.
    A worker that uses the source calls ``prepare`` at its start; an exception stops the worker.
    """

    name: str
    handlers: Callable[[str], Iterable[Handler]]
    wake_channel: str
    prepare: Callable[[], object] = lambda: None


@dataclass
class Registry:
    """The handlers by queue name, in the order of their registration, and the sources of more."""

    by_queue: dict[str, Handler] = field(default_factory=dict)
    _sources: dict[str, Source] = field(default_factory=dict)
    # Modules of handlers that could not be imported, each with the error as a sentence.
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(self._sources.values())

    def add_source(self, source: Source) -> None:
        """Add a source of handlers, or replace the one of the same name."""
        self._sources[source.name] = source

    def add(self, handler: Handler) -> None:
        """Register; a second function for a queue is refused, a reloaded one replaces."""
        known = self.by_queue.get(handler.queue)
        if known is not None and known.path != handler.path:
            raise InvalidConfiguration(
                f"The queue {handler.queue!r} is already handled by {known.path}; "
                f"{handler.path} cannot handle it too."
            )
        self.by_queue[handler.queue] = handler

    def get(self, queue: str) -> Handler:
        """Return the handler of the queue, or raise HandlerNotFound with the known queues."""
        try:
            return self.by_queue[queue]
        except KeyError:
            known = ", ".join(sorted(self.by_queue)) or "none"
            raise HandlerNotFound(
                f"No handler is registered for the queue {queue!r}; registered: {known}."
                f"{did_you_mean(queue, self.by_queue)} "
                "Declare one with @handler in a module named handlers of an installed app."
            ) from None

    def lack_of(self, queue: str, kind: str) -> str:
        """Return a sentence if no handler takes messages of the kind, else an empty text."""
        if any(each.kind == kind for each in self):
            return ""
        handled = self.by_queue.get(queue)
        if handled is not None:
            return f"The handler of the queue {queue!r} takes {handled.kind!r}, not {kind!r}."
        return f"The queue {queue!r} has no handler.{did_you_mean(queue, self.by_queue)}"

    def remove(self, queue: str) -> None:
        self.by_queue.pop(queue, None)

    def __iter__(self) -> Iterator[Handler]:
        return iter(self.by_queue.values())

    def __contains__(self, queue: object) -> bool:
        return queue in self.by_queue


registry = Registry()


def handler(
    queue: str,
    *,
    retry: RetryPolicy | None = None,
    codec: str | Codec = "json",
    kind: str | None = None,
    lease: Duration | None = None,
    timeout: Duration | None = None,
    transactional: bool = False,
    batch_size: int | None = None,
    claim: str = "fast",
    groups: Groups | None = None,
    on_expired: str = "delete",
    many: bool = False,
    linger: Duration | None = None,
    split: bool = True,
) -> Callable[[F], F]:
    """Register the decorated function as the handler of a queue; return it unchanged.

    ``retry`` and ``lease`` default to the queue settings of ``DELAYED_QUEUE``; ``codec`` and
    ``kind`` must be those the messages are offered with. A handler that takes longer than
    ``timeout`` has failed: an async one is cancelled, the thread of another is abandoned.
    ``transactional`` commits the handler's writes together with the message's deletion, a batch at
    a time: exactly once, or not at all. ``batch_size`` limits the messages of one claim or one such
    transaction. With ``claim="strict"`` one worker claims at a time. ``groups`` are the limits of
    messages with a group. A message that has expired is deleted, or with ``on_expired="dead"``
    becomes a dead letter.

    With ``many=True`` the function receives a ``Batch`` of at most ``batch_size`` messages, which
    is called for after ``linger`` if it is not full before. When the function raises, the batch is
    split until the failing messages are alone; with ``split=False`` all of them have failed.
    """
    if callable(queue):
        raise InvalidConfiguration(
            f'Write @handler("orders"), with the name of a queue: {_name_of(queue)} has none.'
        )
    chosen = codec_named(codec)
    check_kind(queue)
    stored_kind = check_kind(kind_of(queue, chosen) if kind is None else kind)
    _check_treatment(retry, batch_size, claim)
    lease_span, time_limit = _positive("lease", lease), _positive("timeout", timeout)
    if on_expired not in ON_EXPIRED:
        raise InvalidConfiguration(
            f"on_expired must be one of {', '.join(ON_EXPIRED)}, not {on_expired!r}."
        )
    _check_groups(groups, transactional)
    wait = _check_many(many, linger, split, batch_size, lease_span)

    def register(function: F) -> F:
        if not callable(function):
            raise InvalidConfiguration(f"{function!r} is not callable, so it cannot handle.")
        _check_arguments(function, many=many)
        if transactional:
            _check_transactional(function, lease, timeout, claim, on_expired)
        registry.add(
            Handler(
                queue, function, chosen, stored_kind, retry, lease_span, time_limit,
                transactional, batch_size, claim, groups, on_expired, many, wait, split,
            )
        )  # fmt: skip
        return function

    return register


def _check_arguments(function: Callable[..., Any], *, many: bool) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a C function has no signature
        return
    what = "batch" if many else "envelope"
    try:
        signature.bind(None)
    except TypeError as error:
        raise InvalidConfiguration(
            f"A handler is called with one argument, the {what}; {_name_of(function)}{signature} "
            f"cannot be: {error}."
        ) from error
    text = inspect.formatannotation(next(iter(signature.parameters.values())).annotation)
    is_one, is_many = _ONE.fullmatch(text), _MANY.fullmatch(text)
    if (is_one and many) or (is_many and not many):
        raise InvalidConfiguration(
            f"{_name_of(function)} is annotated to receive {text.strip(QUOTES)}, but a handler "
            f"{'with' if many else 'without'} many=True receives "
            f"{'a Batch' if many else 'one Envelope'}."
        )


def _check_many(
    many: Any, linger: Any, split: Any, batch_size: Any, lease: timedelta | None
) -> timedelta | None:
    """Return the time to wait for a fuller batch; refuse options of batches that do not hold."""
    for name, value in (("many", many), ("split", split)):
        if type(value) is not bool:
            raise InvalidConfiguration(f"{name} must be True or False, not {value!r}.")
    if not many and (linger is not None or not split):
        name = "split" if linger is None else "linger"
        raise InvalidConfiguration(f"{name} is for a handler that receives batches: add many=True.")
    if many and (batch_size or 0) > MOST_IN_BATCH:
        raise InvalidConfiguration(
            f"batch_size must be at most {MOST_IN_BATCH:,} with many=True, not {batch_size!r}."
        )
    wait = _positive("linger", linger)
    if lease is not None:
        check_linger(wait, lease)
    return wait


def check_linger(linger: timedelta | None, lease: timedelta) -> None:
    """Refuse a wait for fuller batches that takes more than a tenth of the lease."""
    if linger is not None and linger * 10 > lease:
        raise InvalidConfiguration(
            f"linger must be at most a tenth of the lease of {lease}, not {linger}."
        )


def _name_of(function: Any) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__name__)}"


def _check_treatment(retry: Any, batch_size: Any, claim: Any) -> None:
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise InvalidConfiguration(f"retry must be a RetryPolicy, not {retry!r}.")
    if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
        raise InvalidConfiguration(f"batch_size must be 1 or more, not {batch_size!r}.")
    check_claim(claim)


def _check_groups(groups: Any, transactional: bool) -> None:
    if groups is not None and not isinstance(groups, Groups):
        raise InvalidConfiguration(f"groups must be a Groups, not {groups!r}.")
    if groups is not None and transactional:
        raise InvalidConfiguration(
            "A transactional handler uses no leases, but limits count leases: "
            "declare groups without transactional=True."
        )


def _positive(name: str, duration: Duration | None) -> timedelta | None:
    if duration is None:
        return None
    return check_duration(name, duration, timedelta.resolution, timedelta.max)


def _check_transactional(
    function: Any, lease: Any, timeout: Any, claim: str, on_expired: str
) -> None:
    """Refuse options that do not work in a transaction, which belongs to one thread."""
    if inspect.iscoroutinefunction(function):
        raise InvalidConfiguration(
            f"{function!r} is async; a transactional handler must be a plain function, because "
            "Django's transactions belong to a thread."
        )
    if lease is not None or timeout is not None:
        raise InvalidConfiguration(
            "A transactional handler has no lease and no timeout: its message is held by the "
            "transaction. Limit that with PostgreSQL's transaction_timeout."
        )
    if claim != "fast":
        raise InvalidConfiguration(
            "A transactional handler claims inside its transaction. With a strict "
            "claim only one such transaction could be open at a time."
        )
    if on_expired != "delete":
        raise InvalidConfiguration("A transactional handler deletes messages that have expired.")
