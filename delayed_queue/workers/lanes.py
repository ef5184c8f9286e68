"""A lane: one queue as a worker sees it, with its handler and its next time to look."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from delayed_queue.exceptions import HandlerNotFound
from delayed_queue.handlers import Handler, Registry
from delayed_queue.messages import Envelope
from delayed_queue.queues import DelayedQueue
from delayed_queue.retries import RetryPolicy
from delayed_queue.workers.options import WorkerOptions


@dataclass(slots=True, eq=False)
class Lane:
    """``look_at`` is the monotonic time before which a look at the queue would find nothing."""

    handler: Handler
    queue: DelayedQueue
    policy: RetryPolicy
    look_at: float = 0.0
    _next_look: float | None = None

    def claim(self, limit: int) -> list[Envelope]:
        """Lease up to ``limit`` due messages, unless it is known that there are none yet."""
        if time.monotonic() < self.look_at:
            return []
        batch = self.queue.try_poll_many(limit)
        if len(batch) == limit:
            self._next_look = None
        elif self._next_look is None:
            # Only the look after this one may put off the next: what falls due between a
            # claim and this question is in the answer of neither.
            self._next_look = time.monotonic() + self.queue.seconds_to_next_look()
        else:
            self.look_at, self._next_look = self._next_look, None
        return list(batch)

    def wake(self) -> None:
        """Something may have been offered: look at once."""
        self.look_at = 0.0
        self._next_look = None


@dataclass(slots=True, eq=False)
class Delivery:
    """One message on its way through a worker."""

    envelope: Envelope
    lane: Lane
    leased_at: float
    error: BaseException | None = None


def lanes_of(options: WorkerOptions, registry: Registry) -> list[Lane]:
    """Return the lanes of the named queues, or of all with a handler, in order of priority."""
    chosen: Iterable[Handler] = registry
    if options.queues:
        chosen = [registry.get(name) for name in options.queues]
    lanes = [_lane(each, options) for each in chosen]
    if not lanes:
        raise HandlerNotFound(
            "No handler is registered, so there is nothing to work on. Declare one with "
            "@handler in a module named handlers of an installed app."
        )
    return lanes


def _lane(handler: Handler, options: WorkerOptions) -> Lane:
    queue = DelayedQueue(
        handler.queue,
        codec=handler.codec,
        kind=handler.kind,
        using=options.using,
        lease_duration=options.lease or handler.lease,
        poll_interval=options.poll_interval,
        retry_policy=handler.retry,
    )
    return Lane(handler, queue, queue.retry_policy)
