"""The savepoint around what the block of a consumer writes."""

from __future__ import annotations

from typing import Any

from django.db import Error, connections

from delayed_queue.db.statements import HANDLER


class HandlerBlock:
    """Undo what the block wrote on the connection if it raises, and its ``on_commit`` hooks.

    As Django's inner atomic block does, with two round trips less: the statement that took
    the message has set the savepoint, and the COMMIT that follows releases it.
    """

    def __init__(self, using: str) -> None:
        self._connection: Any = connections[using]

    def __enter__(self) -> None:
        # By this list Django knows which on_commit hooks a rollback takes along.
        self._connection.savepoint_ids.append(HANDLER)

    def __exit__(self, exc_type: type[BaseException] | None, *rest: object) -> None:
        self._connection.savepoint_ids.pop()
        if exc_type is None or self._connection.closed_in_transaction:
            return
        self._connection.needs_rollback = False
        try:
            self._connection.savepoint_rollback(HANDLER)
        except Error:
            # As Django does: the error of the block tells more. The transaction is lost.
            self._connection.needs_rollback = True
