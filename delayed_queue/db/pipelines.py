"""What is left to do when a pipeline of psycopg has failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg


class RefusableCursor(psycopg.Cursor[tuple[Any, ...]]):
    """A cursor that keeps what the server refused its statement with.

    When a session is ended, psycopg reads that answer in a pipeline, goes on reading, and tells
    of the broken connection alone; but it matters that the statement has not happened.
    """

    refusal: psycopg.Error | None = None

    def _check_results(self, results: Any) -> None:
        try:
            super()._check_results(results)
        except psycopg.Error as error:
            self.refusal = error
            raise


def leave_pipeline(raw: psycopg.Connection[Any]) -> None:
    """Read what psycopg leaves unread: for a sync it expects one answer, a failed commit has two.

    Until all is read, the connection cannot be used.
    """
    while not raw.closed and raw.info.pipeline_status is not psycopg.pq.PipelineStatus.OFF:
        try:
            raw.pgconn.exit_pipeline_mode()
        except psycopg.OperationalError:
            raw.pgconn.get_result()


def refusal_of(cursors: Sequence[RefusableCursor]) -> psycopg.Error | None:
    """Return what the first of the statements was refused with, if one was."""
    return next((each.refusal for each in cursors if each.refusal is not None), None)


def first_of(error: psycopg.Error) -> psycopg.Error:
    """Return the error that came first: that a pipeline could not be left follows from it."""
    first = error.__context__
    return first if isinstance(first, psycopg.Error) else error
