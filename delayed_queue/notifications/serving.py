"""The treatment of the dispatcher's messages: their ends are written with the acknowledgement."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

from delayed_queue import Envelope, Reject, Retry, Snooze
from delayed_queue.db.resilience import is_unavailable
from delayed_queue.db.sql import Step
from delayed_queue.handlers import Failure, Manner, Verdict
from delayed_queue.notifications.dispatching import dispatch
from delayed_queue.notifications.models import Status
from delayed_queue.notifications.settling import Settlement, deferring, failing, settling

_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MANNER: Final = Manner(is_async=True)
# Delay, in seconds, of messages whose notifications could not be started without the database.
OUTAGE_WAIT: Final = (1.0, 5.0)


class Dispatching:
    """The treatment of all queues of the dispatcher.

    The state of an envelope is the notification during a call of a provider, the settlement at the
    end, and None before.
    """

    def __str__(self) -> str:
        return f"{dispatch.__module__}.{dispatch.__qualname__}"

    def manner(self, envelope: Envelope) -> Manner:
        return _MANNER

    async def acall(self, envelope: Envelope) -> None:
        if not _ID.fullmatch(envelope.key):
            raise Reject("the key is not the id of a notification")
        settlement = envelope.state = await dispatch(envelope)
        if settlement is None or settlement.status != Status.ENQUEUED:
            return
        if settlement.calls or settlement.error:
            error = settlement.calls[-1].error_class if settlement.calls else settlement.error
            raise Retry(settlement.delay, error)
        raise Snooze(settlement.delay)

    def judge(self, error: BaseException, envelope: Envelope) -> Verdict | None:
        if envelope.state is None and is_unavailable(error):
            seconds = random.uniform(*OUTAGE_WAIT)  # noqa: S311 - to spread the messages
            return Verdict(timedelta(seconds=seconds), counts=False)
        return None

    def unwanted(self, envelopes: Sequence[Envelope], using: str) -> Iterable[Envelope]:
        return ()

    def acknowledging(self, done: Sequence[Envelope]) -> Step | None:
        settled = [(each, each.state) for each in done if each.state is not None]
        return settling(settled, done) if settled else None

    def recording(self, failed: Sequence[Failure]) -> list[Step]:
        """Write what was deferred, and what will not be tried again.

        One that was in a call stays PROCESSING: it may have been sent, and the next attempt takes
        it over. One that was not started may have been, if the reply was lost.
        """
        deferred, dead = [], []
        for envelope, _, verdict in failed:
            if not _ID.fullmatch(envelope.key):
                continue
            if verdict.is_dead:
                dead.append((envelope.key, envelope.lease_id, f"given up: {verdict.reason}"))
            elif envelope.state is None or isinstance(envelope.state, Settlement):
                deferred.append((envelope, envelope.state or Settlement(Status.ENQUEUED)))
        steps = [deferring(deferred)] if deferred else []
        return [*steps, failing(dead)] if dead else steps

    def refusal(self, payload: Any) -> str:
        return ""

    def kinds(self) -> Sequence[str]:
        return ()


dispatching: Final = Dispatching()
