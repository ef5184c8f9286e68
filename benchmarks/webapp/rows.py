"""A row of a notification, as the intake stores it, written by bare SQL."""

from __future__ import annotations

from typing import Any, Final, LiteralString

NOTIFICATION: Final[LiteralString] = """
INSERT INTO delayed_queue_notification (
    id, tenant, channel, priority, category, recipient, recipient_hash, template,
    subject, body, html, send_at, dedupe_key, callback_url, status, attempts, provider,
    provider_id, outcome, error_class
)
VALUES (
    %s, 'bench', %s, 'normal', '', %s, '0123456789abcdef', '', %s, %s, '', now(), %s,
    '', 'ENQUEUED', 0, '', '', '', ''
)
"""


def notification_row(id_: Any, asked: dict[str, Any]) -> list[Any]:
    return [id_, *(asked[name] for name in ("channel", "to", "subject", "body", "dedupeKey"))]
