"""Exchanges: several statements in one round trip, over libpq."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import psycopg
from psycopg.pq import ConnStatus, ExecStatus, PipelineStatus
from psycopg.pq.abc import PGresult

from delayed_queue.db.session import BINARY, Dumped, Kept, Prepared, Session, Statement
from delayed_queue.db.sql import Row

# A session was ended by an operator or with the server.
_ENDINGS: Final = (
    psycopg.errors.AdminShutdown,
    psycopg.errors.CrashShutdown,
    psycopg.errors.DatabaseDropped,
    psycopg.errors.IdleSessionTimeout,
)

# A NOTIFY failed: its queue is full, its lock was not available in time, or it was deallocated.
_NOTIFY_FAILURES: Final = (
    psycopg.errors.ProgramLimitExceeded,
    psycopg.errors.QueryCanceled,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.InvalidSqlStatementName,
)
_DONE: Final = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)


def result_of(session: Session, statement: str, params: Mapping[str, Any], kept: Kept) -> PGresult:
    """Run one statement, after a BEGIN or PREPARE in the same round trip if one is due."""
    if not session.must_begin():
        dumped = session.dumped(statement, params, kept)
        query, _, types, _, most = dumped
        name = session.name_of((query, types), most) if most else b""
        if name is not None:
            return session.result(dumped, name)
    return Exchange(session, [[(statement, params)]], kept).results()[0]


class Exchange:
    """Groups of statements in one round trip; each group commits unless a transaction is open.

    Only the first group has results. A second one notifies; some of its failures are ignored once
    the first has committed.
    """

    def __init__(self, session: Session, groups: Sequence[Sequence[Statement]], kept: Kept) -> None:
        self._session = session
        self._new: list[Prepared] = []
        # By group: the results so far, and for each result whether it belongs to a statement.
        self._wanted: list[list[bool]] = []
        self._results: list[list[PGresult]] = []
        self._ended = 0
        # Before any is sent: a value that cannot be sent must not leave half an exchange.
        dumped = [[session.dumped(*each, kept) for each in group] for group in groups]
        begin = session.begin() if session.must_begin() else b""
        session.raw.pgconn.enter_pipeline_mode()
        try:
            for group in dumped:
                self._put(group, begin)
                begin = b""
        except psycopg.Error:
            self._leave()
            raise
        except BaseException:
            self._abandon()
            raise

    def _put(self, group: Sequence[Dumped], begin: bytes) -> None:
        self._wanted.append([])
        self._results.append([])
        if begin:
            self._session.raw.pgconn.send_query_params(begin, None)
            self._wanted[-1].append(False)
        for each in group:
            self._put_statement(*each)
            self._wanted[-1].append(True)
        self._session.raw.pgconn.pipeline_sync()

    def _put_statement(
        self, query: bytes, values: Any, types: tuple[int, ...], formats: Any, most: float
    ) -> None:
        pgconn = self._session.raw.pgconn
        if most:
            name = self._session.name_of((query, types), most) or self._prepare(query, types)
            pgconn.send_query_prepared(name, values, formats, BINARY)
        else:
            pgconn.send_query_params(query, values, types, formats, BINARY)

    def _prepare(self, query: bytes, types: tuple[int, ...]) -> bytes:
        name, evicted = self._session.add_name((query, types))
        self._new.append((query, types))
        pgconn = self._session.raw.pgconn
        if evicted is not None:
            self._wanted[-1].append(False)
            # Poolers do not parse DEALLOCATE.
            if psycopg.capabilities.has_send_close_prepared():
                pgconn.send_close_prepared(evicted)
            else:
                pgconn.send_query_params(b"DEALLOCATE " + evicted, None)
        pgconn.send_prepare(name, query, types)
        self._wanted[-1].append(False)
        return name

    def send(self) -> None:
        """Send everything; the results are read later."""
        try:
            self._session.raw.wait(psycopg.generators.send(self._session.raw.pgconn))
        except BaseException:
            self._abandon()
            raise

    def rows(self) -> list[list[Row]]:
        """Wait for the rows of each statement of the first group."""
        return [self._session.rows(each) for each in self.results()]

    def results(self) -> list[PGresult]:
        """Wait for the results of the first group's statements."""
        failure: psycopg.Error | None = None
        try:
            with self._session.raw.lock:
                self._session.raw.wait(self._fetch_results())
        except psycopg.Error as error:
            failure = error
        except BaseException:
            self._abandon()
            raise
        self._leave()
        self._check(failure)
        first = zip(self._results[0], self._wanted[0], strict=True)
        return [result for result, is_wanted in first if is_wanted]

    def _fetch_results(self) -> Generator[Any, Any, None]:
        pgconn = self._session.raw.pgconn
        yield from psycopg.generators.send(pgconn)
        for results in self._results:
            while (result := (yield from psycopg.generators.fetch(pgconn))) is None or (
                result.status != ExecStatus.PIPELINE_SYNC
            ):
                if result is not None:
                    results.append(result)
                elif pgconn.status != ConnStatus.OK:
                    raise psycopg.OperationalError("the connection is lost")
            self._ended += 1

    def _check(self, failure: psycopg.Error | None) -> None:
        refusal = self._session.refusal(self._results[0])
        if refusal is not None:
            self._session.forget(self._new)
            done = sum(each.status in _DONE for each in self._results[0])
            if done == len(self._wanted[0]) and isinstance(refusal, _ENDINGS):
                # Before or after the commit: it is unknown whether the statements took effect.
                raise psycopg.OperationalError("the session was ended at the commit") from refusal
            raise refusal
        error = self._session.refusal(chain.from_iterable(self._results[1:])) or failure
        if error is not None:
            self._session.forget(self._new)
            if self._ended == 0 or not isinstance(error, _NOTIFY_FAILURES):
                raise error

    def _abandon(self) -> None:
        """Leave the pipeline after an interruption, or close the connection."""
        self._session.forget(self._new)
        if self._results and self._ended == len(self._results):
            self._leave()
        else:
            self._session.cut()

    def _leave(self) -> None:
        """Read the rest and leave the pipeline, so that the connection can be used."""
        pgconn = self._session.raw.pgconn
        while pgconn.status == ConnStatus.OK and pgconn.pipeline_status != PipelineStatus.OFF:
            try:
                pgconn.exit_pipeline_mode()
            except psycopg.OperationalError:
                pgconn.get_result()
