"""Messages stored by batch handlers: ``python -m benchmarks.batch_handlers``.

A handler with ``many=True, transactional=True`` that stores its batches by ``bulk_create`` or, as
pg-boss does here, by one INSERT over arrays; beside a handler that stores each message, and beside
pg-boss with batches of 1,000 in the same table. Each has one process; our workers have four
threads, pg-boss four loops. pg-boss commits the rows and the completion of their jobs apart.
"""

from __future__ import annotations

import os
import subprocess
import time
from functools import partial
from typing import Any, Final

from psycopg.conninfo import conninfo_to_dict

from benchmarks.peers.arena import VARIABLES
from benchmarks.peers.contenders import PG_BOSS
from benchmarks.peers.environments import Unavailable
from benchmarks.shared.database import benchmark_database, conninfo_of, value_of
from benchmarks.shared.machine import describe
from benchmarks.shared.reporting import Options, Report, Table, say
from benchmarks.shared.rounds import in_turns, ratio, spread

BATCH: Final = 1_000
THREADS: Final = 4
TEXT: Final = "x" * 90
TABLE: Final = "CREATE TABLE stored (id bigserial PRIMARY KEY, key text, payload text)"

INSERT: Final = "INSERT INTO stored (key, payload) SELECT * FROM unnest(%s::text[], %s::text[])"


def main() -> None:
    """Measure rows stored a second."""
    options = Options(".batch_handlers", __doc__).size("rounds", 3, 1, "rounds of each")
    parsed = options.size("count", 1_000_000, 10_000, "messages of a round").parse()
    with benchmark_database(parsed.database_url) as connection:
        connection.execute(TABLE)
        report = Report(describe(connection))
        rate = partial(_rate, connection, parsed.count)
        ways = {
            "many": partial(rate, _in_batches), "many, one INSERT": partial(rate, _by_arrays),
            "one": partial(rate, _one_by_one),
        }  # fmt: skip
        try:
            PG_BOSS.environment.make()
            ways["pg-boss"] = partial(rate, _pg_boss)
        except Unavailable as error:
            say(f"pg-boss is left out: {error}")
        found = in_turns(parsed.rounds, ways)
    columns = ("way", "rows/s", "many, compared", "one INSERT, compared")
    table = Table("Rows stored a second", columns)
    for name, rates in found.items():
        compared = (f"{ratio(found[each], rates):.2f}" for each in ("many", "many, one INSERT"))
        table.add(name, spread(rates), *compared)
    report.tables.append(table)
    report.write(parsed)


def _rate(connection: Any, count: int, run: Any) -> float:
    connection.execute("TRUNCATE stored, delayed_queue")
    seconds: float = run(connection, count)
    if (stored := value_of(connection, "SELECT count(*) FROM stored")) != count:
        raise RuntimeError(f"{stored:,} rows are stored, not {count:,}.")
    return count / seconds


def _in_batches(connection: Any, count: int) -> float:
    model = _model()

    def store(batch: Any) -> None:
        model.objects.bulk_create(model(key=each.key, payload=each.payload) for each in batch)

    return _worked_off(count, store, many=True, transactional=True, batch_size=BATCH)


def _by_arrays(connection: Any, count: int) -> float:
    from django.db import connection as own

    def store(batch: Any) -> None:
        with own.cursor() as cursor:
            cursor.execute(INSERT, [[each.key for each in batch], [each.payload for each in batch]])

    return _worked_off(count, store, many=True, transactional=True, batch_size=BATCH)


def _one_by_one(connection: Any, count: int) -> float:
    model = _model()

    def store(each: Any) -> None:
        model.objects.create(key=each.key, payload=each.payload)

    return _worked_off(count, store)


def _worked_off(count: int, store: Any, **more: Any) -> float:
    from delayed_queue import DelayedQueue, ScheduledMessage
    from delayed_queue.codecs import codec_named
    from delayed_queue.handlers import Handler, Registry
    from delayed_queue.worker import Worker, WorkerOptions

    queue, registry = DelayedQueue("stored"), Registry()
    for start in range(0, count, BATCH):
        numbers = range(start, min(start + BATCH, count))
        queue.offer_batch(ScheduledMessage(f"key-{n}", TEXT) for n in numbers)
    registry.add(Handler("stored", store, codec_named("json"), queue.kind, **more))
    worker = Worker(WorkerOptions(burst=True, cron=False, concurrency=THREADS), registry)
    started_at = time.perf_counter()
    worker.run()
    return time.perf_counter() - started_at


def _pg_boss(connection: Any, count: int) -> float:
    connection.execute("DROP SCHEMA IF EXISTS pgboss CASCADE")
    parts = conninfo_to_dict(conninfo_of(connection))
    named = {VARIABLES[key]: str(value) for key, value in parts.items() if key in VARIABLES}
    command = [*PG_BOSS.environment.command("pg_boss_storing.mjs"), str(count)]
    variables = {**os.environ, **PG_BOSS.environment.variables(), **named}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)  # noqa: S603
    return float(done.stdout.split()[-1])


def _model() -> Any:
    """Return a model of the table, made once Django is configured."""
    from django.apps import apps
    from django.db import models

    if known := apps.all_models["delayed_queue"].get("stored"):
        return known
    meta = type("Meta", (), {"db_table": "stored", "app_label": "delayed_queue", "managed": False})
    fields = {"key": models.TextField(), "payload": models.TextField()}
    return type("Stored", (models.Model,), {"__module__": __name__, "Meta": meta, **fields})


if __name__ == "__main__":
    main()
