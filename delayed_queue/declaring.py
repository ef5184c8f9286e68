"""The decorator ``@handler``, and the checks of its options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

from delayed_queue.codecs import Codec, check_kind, codec_named, kind_of
from delayed_queue.durations import Duration, check_duration
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.handlers import Handler, HandlerFunction, registry
from delayed_queue.messages import check_claim
from delayed_queue.retries import Groups, RetryPolicy

# Fates of a message that has expired.
ON_EXPIRED: Final = ("delete", "dead")
# At most N messages in one call of a handler with many=True.
MOST_IN_BATCH: Final = 10_000
F = TypeVar("F", bound=HandlerFunction)
# Annotations of one message, and of many; quoted ones and aliases of the module are resolved here
# by name only.
QUOTES: Final = "'\""
_ONE: Final = re.compile(r"""['"]?(?:\w+\.)*Envelope['"]?""")
_MANY: Final = re.compile(
    r"""['"]?(?:(?:\w+\.)*Batch|(?:\w+\.)*(?:Sequence|Iterable|Collection|list|tuple)\[.*\])['"]?""",
    re.IGNORECASE,
)


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
