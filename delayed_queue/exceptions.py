"""Every error the package raises, as one tree, and the guess behind "did you mean".

A lost lease is an answer, not an error: ``acknowledge()``, ``release()``, ``extend()`` and
``reject()`` return False.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import islice
from typing import Final

# Comparing two names takes time in proportion to the product of their lengths, and callers
# choose the names.
MAX_LENGTH: Final = 40
MAX_KNOWN: Final = 200


class DelayedQueueError(Exception):
    """The queue could not do the operation."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message if message is not None else self._default_message())

    @classmethod
    def _default_message(cls) -> str:
        return (cls.__doc__ or cls.__name__).strip().splitlines()[0]


class InvalidConfiguration(DelayedQueueError, ValueError):
    """A queue, retry policy, handler or worker was configured with a value it cannot have."""


class ExtraNotInstalled(InvalidConfiguration, ImportError):
    """A library that only an extra of the package brings is not installed."""


class DatabaseRefused(DelayedQueueError):
    """The database refuses the worker: no such database, a wrong password, no permission."""


class InvalidMessage(DelayedQueueError, ValueError):
    """The message cannot be stored; nothing was sent to the database."""


class BatchClosed(InvalidMessage):
    """The batch is closed or unknown; nothing was offered."""


class PayloadNotEncodable(InvalidMessage):
    """The payload cannot be encoded by the queue's codec; nothing was sent to the database."""


class InvalidJob(InvalidMessage):
    """The job cannot be stored; ``errors`` has (path, message) for each field that is wrong."""

    def __init__(self, message: str | None = None, errors: Sequence[tuple[str, str]] = ()) -> None:
        if message is None and errors:
            message = "; ".join(f"{path}: {wrong}" for path, wrong in errors)
        super().__init__(message)
        self.errors = tuple(errors)


class UrlRefused(InvalidMessage):
    """A callback must not be sent to this url."""


class CallbacksOff(InvalidConfiguration):
    """A job has a url, and workers send no callbacks."""


class PayloadNotDecodable(DelayedQueueError, ValueError):
    """The stored payload cannot be decoded by the queue's codec."""


class ConfirmationRequired(DelayedQueueError, ValueError):
    """The call destroys data and needs its exact confirmation text."""


class HandlerNotFound(DelayedQueueError, LookupError):
    """No handler is registered for the queue."""


class HandlerTimeout(DelayedQueueError, TimeoutError):
    """The handler took longer than its timeout."""


class SecretNotReadable(DelayedQueueError):
    """No key in force opens the sealed secret."""


class SchemaMismatch(DelayedQueueError):
    """The tables are of another version than the package."""


class RunInProgress(DelayedQueueError):
    """A bulk run over the same dead letters is in progress."""


class NoSuchLetters(DelayedQueueError, LookupError):
    """There is no such dead letter, or none of such a group."""


class JobFinished(DelayedQueueError):
    """The job of that id is done; offering its rows again would do nothing."""


class ResourceUnavailable(DelayedQueueError):
    """The database stayed unavailable through every retry; the cause is attached."""


class OutcomeUnknown(ResourceUnavailable):
    """The connection was lost mid-write, so the write may or may not have taken effect."""


class TooManyConnections(ResourceUnavailable):
    """The job would open more connections than the server has left; nothing was written."""


class Unreachable(ResourceUnavailable):
    """No connection could be made; a repetition may help."""


@contextmanager
def needing(extra: str, what: str) -> Iterator[None]:
    """Raise ExtraNotInstalled when an import within finds no library; ours are never missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("", "delayed_queue"):
            raise
        raise ExtraNotInstalled(
            f"{what} needs the extra [{extra}]: pip install 'django-delayed-queue[{extra}]' "
            f"({error})."
        ) from error


def suggest(name: object, known: Iterable[str]) -> str | None:
    """Return the most similar known name, ignoring case; None if none is similar.

    Also None for a name that is too long to be a typing error.
    """
    if not isinstance(name, str) or len(name) > MAX_LENGTH:
        return None
    by_fold = {each.casefold(): each for each in islice(known, MAX_KNOWN)}
    close = get_close_matches(name.casefold(), by_fold, n=1)
    return by_fold[close[0]] if close else None


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return " Did you mean …?" with the most similar known name; "" without one."""
    close = suggest(name, known)
    return f" Did you mean {close!r}?" if close else ""
