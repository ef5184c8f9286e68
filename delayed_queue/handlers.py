"""Handlers: their registry, their possible outcomes, and the delivery that runs."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, NamedTuple, Protocol

from delayed_queue.codecs import Codec
from delayed_queue.durations import ZERO, Duration, check_duration
from delayed_queue.exceptions import HandlerNotFound, InvalidConfiguration, did_you_mean
from delayed_queue.messages import Envelope
from delayed_queue.retries import Groups, RetryPolicy

MAX_ERROR_LENGTH: Final = 10_000
HandlerFunction = Callable[[Any], Any]


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

# The delivery whose handler runs in the current thread or asyncio task.
current_envelope: Final[ContextVar[Envelope | None]] = ContextVar("current_envelope", default=None)


def begin_replacing(queue: str, keys: Collection[str]) -> Envelope | None:
    """Mark the current delivery as replaced if its handler now offers its own key anew.

    Return that delivery the first time. If the offer is then ignored, the lease still holds and the
    caller must clear the mark.
    """
    envelope = current_envelope.get()
    if envelope is None or envelope.queue != queue or envelope.key not in keys:
        return None
    was_replaced, envelope.is_replaced = envelope.is_replaced, True
    return None if was_replaced else envelope
