"""What several statements of the service have in common."""

from __future__ import annotations

from typing import Final, LiteralString

# A delivery for each of ``held`` that was taken in hand by somebody who never wrote how it ended:
# the provider may have seen it.
INTERRUPTED: Final[LiteralString] = """
interrupted AS (
    INSERT INTO notifications_delivery (
        notification_id, attempt, provider, provider_id, outcome, error_class, detail
    )
    SELECT id, attempts, '', '', 'unfinished', '', ''
    FROM held
    WHERE was_interrupted
)"""

# What tells a row of ``notifications_template AS t`` from any other that there ever was, and from
# itself before any UPDATE, also one by hand: by the transaction that wrote it and where it lies. A
# VACUUM FULL changes it too, and then the template is read once more. Ids alone begin anew in
# another database, such as one that was restored.
STAMP: Final[LiteralString] = """
    concat_ws(' ', t.id, t.xmin, t.ctid, extract(epoch FROM t.created_at))"""
