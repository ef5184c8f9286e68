"""From a broker's messages to rows: accepted or parked, all in one transaction, none lost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, LiteralString

from django.db import DataError, IntegrityError, transaction

from delayed_queue.db.resilience import is_unavailable
from delayed_queue.notifications import intake
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.intake import Accepted, Refused
from delayed_queue.notifications.models import ParkedRequest, Source
from delayed_queue.notifications.services import USING, execute
from delayed_queue.notifications.validation import FieldError

# Keep broker's messages that are no valid requests; one that is kept already is counted.
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
    """A message as the broker delivered it; ``broken`` says that it cannot even be read."""

    body: bytes = field(repr=False)
    content_type: str = JSON
    encoding: str = ""
    message_id: str = ""
    broken: str = ""

    def digest_for(self, tenant: str) -> bytes:
        parts = (tenant, self.content_type, self.encoding, self.message_id)
        return sha256("\n".join(parts).encode("utf-8", "replace") + b"\n" + self.body).digest()


@dataclass(frozen=True, slots=True)
class Tally:
    """The result of a batch."""

    accepted: int = 0
    duplicates: int = 0
    parked: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.accepted + other.accepted,
            self.duplicates + other.duplicates,
            self.parked + other.parked,
        )


def take(messages: Sequence[Incoming], *, tenant: str, origin: str) -> Tally:
    """Store the valid requests and park the others, in one transaction; acknowledge after it.

    Raises only what says that the database is away: then nothing was stored, and the messages
    are to come again. Whatever else one message causes is its own end, in the parking.
    """
    try:
        return _take(messages, tenant, origin)
    # One that no check foresaw must not stop the others, or come back for ever.
    except Exception as error:
        if is_unavailable(error):
            raise
        if len(messages) > 1:
            return sum((take([each], tenant=tenant, origin=origin) for each in messages), Tally())
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
        source=Source.BROKER,
        fallback_keys=[each.message_id for each in messages],
    )


def _read(message: Incoming) -> Any:
    reason = _unreadable(message)
    return _refused(reason) if reason else intake.read_json(message.body)


def _unreadable(message: Incoming) -> str:
    # Nothing but JSON is decoded, ever: to unpickle is to run what the sender likes.
    kind = message.content_type.partition(";")[0].strip().lower()
    if message.broken:
        return message.broken
    if kind not in (JSON, ""):
        return f"has the content type {_shown(kind)}, not {JSON}"
    if message.encoding.lower() not in ENCODINGS:
        return f"is encoded in {_shown(message.encoding)}, not in UTF-8"
    most = get_settings().BODY_BYTES
    return f"has more than {most} bytes" if len(message.body) > most else ""


def _shown(text: str) -> str:
    return repr(text[:40])


def _refused(message: str) -> Refused:
    return Refused([FieldError("", message)])


def park(refused: Iterable[tuple[Incoming, Refused]], origin: str, tenant: str) -> None:
    """Keep messages with what is wrong with them, each different one of a tenant once."""
    pairs = [(each.digest_for(tenant), each, answer) for each, answer in refused]
    times = Counter(digest for digest, _, _ in pairs)
    # In one order everywhere: two consumers never wait for each other.
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
        "errors": [json.dumps([e.as_dict() for e in answer.errors]) for _, answer in kept],
        "times": [times[digest] for digest, _ in rows],
    }
    execute(PARK, params)


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
    """Put a parked request through the intake again; accepted, it leaves the parking."""
    try:
        return _retry_parked(pk)
    # What was parked because the database refused it, and is refused again.
    except (IntegrityError, DataError):
        return False


@transaction.atomic(using=USING)
def _retry_parked(pk: int) -> bool:
    parked = ParkedRequest.objects.select_for_update().filter(pk=pk).first()
    if parked is None:
        return False
    message = Incoming(bytes(parked.body), parked.content_type, "", parked.message_id)
    (answer,) = _accept([message], parked.tenant or get_settings().BROKER_TENANT)
    if isinstance(answer, Refused):
        return False
    parked.delete()
    return True
