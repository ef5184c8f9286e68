"""A broker's messages: accepted or parked, in one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from hashlib import sha256
from typing import Any, Final, LiteralString, NamedTuple

from django.db import DataError, IntegrityError, transaction
from msgspec import json

from delayed_queue import db
from delayed_queue.db.resilience import is_unavailable
from delayed_queue.notifications import intake
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.intake import Accepted, Refused
from delayed_queue.notifications.models import ParkedRequest
from delayed_queue.notifications.services import USING
from delayed_queue.notifications.validation import FieldError

# Store a broker's messages that are no valid requests; count one that is stored already.
# Reads: notification_parked_digest.
PARK: Final[LiteralString] = """
INSERT INTO delayed_queue_notification_parked AS parked (
    digest, origin, tenant, message_id, content_type, body, reason, errors, times
)
SELECT digest, %(origin)s, %(tenant)s, message_id, content_type, body, reason, errors, times
FROM unnest(
    %(digests)s::bytea[], %(message_ids)s::text[], %(content_types)s::text[],
    %(bodies)s::bytea[], %(reasons)s::text[], %(errors)s::jsonb[], %(times)s::int[]
) AS refused (digest, message_id, content_type, body, reason, errors, times)
ON CONFLICT (digest) DO UPDATE
SET
    times = parked.times + EXCLUDED.times,
    parked_at = statement_timestamp(),
    reason = EXCLUDED.reason,
    errors = EXCLUDED.errors
"""


JSON: Final = "application/json"
ENCODINGS: Final = ("", "utf-8", "utf8", "binary", "us-ascii")
MAX_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message as the broker delivered it; ``broken``: why it cannot be read."""

    body: bytes = field(repr=False)
    content_type: str = JSON
    encoding: str = ""
    message_id: str = ""
    broken: str = ""

    def digest_for(self, tenant: str) -> bytes:
        parts = (tenant, self.content_type, self.encoding, self.message_id)
        return sha256("\n".join(parts).encode("utf-8", "replace") + b"\n" + self.body).digest()


class Tally(NamedTuple):
    """The result of a batch."""

    accepted: int = 0
    duplicates: int = 0
    parked: int = 0

    def plus(self, other: Tally) -> Tally:
        return Tally(*map(sum, zip(self, other, strict=True)))


def take(messages: Sequence[Incoming], *, tenant: str, origin: str) -> Tally:
    """Store the valid requests and park the others, in one transaction; acknowledge after it.

    Raises only if the database is unavailable: then nothing was stored, and the broker must
    deliver the messages again. A message that causes any other error is parked.
    """
    try:
        return _take(messages, tenant, origin)
    # An unforeseen error must not stop other messages, or repeat for ever.
    except Exception as error:
        if is_unavailable(error):
            raise
        if len(messages) > 1:
            alone = (take([each], tenant=tenant, origin=origin) for each in messages)
            return reduce(Tally.plus, alone)
        return _park_alone(messages[0], origin, tenant, type(error).__name__)


def _take(messages: Sequence[Incoming], tenant: str, origin: str) -> Tally:
    with transaction.atomic(using=USING):
        answers = _accept(messages, tenant)
        pairs = zip(messages, answers, strict=True)
        refused = [(each, answer) for each, answer in pairs if isinstance(answer, Refused)]
        park(refused, origin, tenant)
    duplicates = sum(isinstance(each, Accepted) and each.is_duplicate for each in answers)
    return Tally(len(answers) - len(refused) - duplicates, duplicates, len(refused))


def _accept(messages: Sequence[Incoming], tenant: str) -> list[Accepted | Refused]:
    return intake.accept(
        [_read(each) for each in messages],
        tenant=tenant,
        fallback_keys=[each.message_id for each in messages],
    )


def _read(message: Incoming) -> Any:
    reason = _unreadable(message)
    return _refused(reason) if reason else intake.read_json(message.body)


def _unreadable(message: Incoming) -> str:
    # Only JSON is decoded: unpickling would run the sender's code.
    kind = message.content_type.partition(";")[0].strip().lower()
    if message.broken:
        return message.broken
    if kind not in (JSON, ""):
        return f"has the content type {_shown(kind)}, not {JSON}"
    if message.encoding.lower() not in ENCODINGS:
        return f"is encoded in {_shown(message.encoding)}, not in UTF-8"
    most = intake.body_bytes()
    return f"has more than {most} bytes" if len(message.body) > most else ""


def _shown(text: str) -> str:
    return repr(text[:40])


def _refused(message: str) -> Refused:
    return Refused([FieldError("", message)])


def park(refused: Iterable[tuple[Incoming, Refused]], origin: str, tenant: str) -> None:
    """Store messages with their errors, each distinct one of a tenant once."""
    pairs = [(each.digest_for(tenant), each, answer) for each, answer in refused]
    times = Counter(digest for digest, _, _ in pairs)
    # In the same order in all consumers, so that they never deadlock.
    rows = sorted({digest: (each, answer) for digest, each, answer in pairs}.items())
    kept = [row for _, row in rows]
    if not kept:
        return
    params: dict[str, Any] = {
        "origin": origin[:MAX_SHOWN],
        "tenant": tenant,
        "digests": [digest for digest, _ in rows],
        "message_ids": [_storable(each.message_id) for each, _ in kept],
        "content_types": [_storable(each.content_type) for each, _ in kept],
        "bodies": [each.body for each, _ in kept],
        "reasons": [_reason(answer) for _, answer in kept],
        "errors": [json.encode(answer.errors).decode() for _, answer in kept],
        "times": [times[digest] for digest, _ in rows],
    }
    db.execute(USING, PARK, params)


def _reason(answer: Refused) -> str:
    first = answer.errors[0]
    return f"{first.path or 'the message'} {first.message}"[:MAX_SHOWN]


def _storable(text: str) -> str:
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()[:MAX_SHOWN]


def _park_alone(message: Incoming, origin: str, tenant: str, error: str) -> Tally:
    with transaction.atomic(using=USING):
        park([(message, _refused(f"cannot be stored: {error}"))], origin, tenant)
    return Tally(parked=1)


def retry_parked(pk: int) -> bool:
    """Try to accept a parked request again; delete it if it is accepted."""
    # The database may refuse it again.
    with suppress(IntegrityError, DataError), transaction.atomic(using=USING):
        parked = ParkedRequest.objects.select_for_update().filter(pk=pk).first()
        if parked is None:
            return False
        message = Incoming(bytes(parked.body), parked.content_type, "", parked.message_id)
        (answer,) = _accept([message], parked.tenant or get_settings().BROKER_TENANT)
        if isinstance(answer, Accepted):
            parked.delete()
        return isinstance(answer, Accepted)
    return False
