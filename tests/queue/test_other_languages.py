"""The examples of the guide run, and Node beside Python loses nothing (S8)."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import psycopg
import pytest
from django.db import connection, transaction

from delayed_queue import DelayedQueue, Envelope
from delayed_queue.models import Message
from tests.support.concurrency import raw_connection
from tests.support.documents import DOCS, ROOT, blocks
from tests.support.pooler import find_program, pooler
from tests.support.processes import database_url, wait_until
from tests.support.running import handler_of, running, worker_with

PAGE: Final = DOCS / "guides/other-languages.md"
SCRIPTS: Final = Path(__file__).parent / "node"
# Examples run by each interpreter that the machine has; those of psql by psycopg otherwise.
PSQL: Final = shutil.which("psql")
NODE_PROGRAM: Final = shutil.which("node")
NPM: Final = shutil.which("npm")
HAS_NODE: Final = NODE_PROGRAM is not None and NPM is not None
LIBRARIES: Final = ROOT / ".tox" / "node"

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="session")
def node_path() -> str:
    """Node's library pg, as npm installs it."""
    LIBRARIES.mkdir(parents=True, exist_ok=True)
    options = ["--no-audit", "--no-fund", "--prefix", str(LIBRARIES)]
    with (LIBRARIES / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes share the folder
        if not (LIBRARIES / "installed").exists():
            command = [str(NPM), "install", *options, "pg@8"]
            subprocess.run(command, check=True, capture_output=True, timeout=300)
            (LIBRARIES / "installed").touch()
    return str(LIBRARIES / "node_modules")


def keys_of(queue: str) -> list[str]:
    found = Message.objects.filter(kind=f"{queue}|json").order_by("key")
    return list(found.values_list("key", flat=True))


def code(language: str, word: str) -> str:
    (found,) = [each.text for each in blocks(PAGE, language) if word in each.text]
    return found


def run_sql(text: str) -> None:
    if PSQL is None:
        with connection.cursor() as cursor:
            cursor.execute(text)
        return
    command = [PSQL, "-v", "ON_ERROR_STOP=1", "-d", database_url(), "-c", text]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@contextmanager
def node(node_path: str, script: Path, *arguments: str, url: str = "") -> Iterator[Any]:
    environment = {**os.environ, "NODE_PATH": node_path, "DATABASE_URL": url or tcp_url()}
    process = subprocess.Popen(
        [str(NODE_PROGRAM), str(script), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def tcp_url() -> str:
    """Return the URL of the test database in the form that Node's library reads."""
    parts = psycopg.conninfo.conninfo_to_dict(database_url())
    user, host, name = parts.get("user", ""), str(parts.get("host", "")), parts["dbname"]
    password, port = parts.get("password", ""), parts.get("port", 5432)
    if host.startswith("/"):
        return f"postgres://{user}:{password}@localhost:{port}/{name}?host={host}"
    return f"postgres://{user}:{password}@{host}:{port}/{name}"


def test_s8_psql_offers_drops_and_offers_many():
    run_sql(code("sql", "delayed_queue_drop"))
    run_sql(code("sql", "offer_many('orders'"))
    assert keys_of("orders") == ["A-18", "A-19"]


def test_s8_a_trigger_offers_in_the_transaction_of_the_insert():
    run_sql("CREATE TABLE invoice (id integer, due_at timestamptz)")
    try:
        run_sql(code("sql", "CREATE TRIGGER"))
        run_sql("INSERT INTO invoice VALUES (7, now()), (8, 'tomorrow')")
        with connection.cursor() as cursor, transaction.atomic():
            cursor.execute("INSERT INTO invoice VALUES (9, now())")
            transaction.set_rollback(True)
        found = DelayedQueue("reminders").try_poll_many(10)
        assert [each.payload for each in found] == [{"invoice": 7}]
    finally:
        run_sql("DROP TABLE invoice; DROP FUNCTION remind")


def test_s8_the_statement_of_jdbc_runs_with_bound_texts():
    """The driver sends texts of an unknown type, and numbered placeholders."""
    (statement,) = re.findall(r'"(SELECT .+)"', code("java", "prepareStatement"))
    numbers = iter(range(1, 9))
    numbered = re.sub(r"\?", lambda _: f"${next(numbers)}", statement)
    with raw_connection() as raw:
        values = [b"orders", b"A-21", b'{"total": 1}', b"0 seconds"]
        result = raw.pgconn.exec_params(numbered.encode(), values)
        assert result.get_value(0, 0) == b"created"


if HAS_NODE:

    def test_s8_node_offers(node_path: str, tmp_path: Path):
        script = tmp_path / "offer.js"
        script.write_text(code("js", "delayed_queue_offer"))
        with node(node_path, script) as process:
            assert process.communicate(timeout=60)[0] == "created\n"

    @pytest.mark.parametrize("way", ["direct", "pooled"])
    def test_s5_s8_a_worker_of_thirty_lines_in_node(node_path: str, tmp_path: Path, way: str):
        """Pooled: behind PgBouncer in transaction mode, if the machine has it."""
        script = tmp_path / "worker.js"
        text = code("js", "delayed_queue_claim")
        assert len(text.splitlines()) <= 40
        script.write_text(text)
        queue = DelayedQueue("orders")
        queue.offer_or_update("A-1", {"total": 40})
        queue.offer_or_update("A-2", None)
        with pooled_url(way) as url, node(node_path, script, "orders", url=url) as process:
            wait_until(lambda: not keys_of("orders"))
            process.terminate()
            printed = process.communicate(timeout=30)[0]
        assert printed == 'A-1 {"total":40}\nA-2 null\n'
        assert process.returncode == 0

    @pytest.mark.parametrize(
        ("count", "kills"), [(3_000, 6), pytest.param(100_000, 60, marks=pytest.mark.long)]
    )
    def test_s8_node_beside_python_with_kills_loses_nothing(node_path: str, count: int, kills: int):
        with tables():
            mixed_drain(node_path, count, kills)
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT count(*), count(DISTINCT key), count(DISTINCT by) FROM handled"
                )
                assert cursor.fetchone() == (count, count, 2)
            assert not keys_of("mixed")


@contextmanager
def pooled_url(way: str) -> Iterator[str]:
    if way == "direct" or not find_program():
        yield ""
        return
    with pooler(database_url()) as url:
        parts = psycopg.conninfo.conninfo_to_dict(url)
        yield f"postgres://{parts['user']}@{parts['host']}:{parts['port']}/{parts['dbname']}"


@contextmanager
def tables() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE produced AS SELECT 0 AS number")
        cursor.execute("CREATE TABLE handled (key text, number integer, by text)")
        try:
            yield
        finally:
            cursor.execute("DROP TABLE produced, handled")


def record(envelope: Envelope) -> None:
    with connection.cursor() as cursor:
        values = [envelope.key, envelope.payload["number"]]
        cursor.execute("INSERT INTO handled VALUES (%s, %s, 'python')", values)


def mixed_drain(node_path: str, count: int, kills: int) -> None:
    """Run a producer and two consumers in Node beside a worker; kill one of the three at times."""
    chance = Random(43)
    scripts = [("producer.js", str(count)), ("consumer.js",), ("consumer.js",)]
    lease = timedelta(seconds=2)

    def start(script: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "NODE_PATH": node_path, "DATABASE_URL": tcp_url()}
        return subprocess.Popen(
            [str(NODE_PROGRAM), str(SCRIPTS / script), *arguments], env=environment
        )

    def reached(number: int) -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM handled")
            return int(cursor.fetchone()[0]) >= number

    processes = [start(*each) for each in scripts]
    worker = worker_with(handler_of("mixed", record, transactional=True, lease=lease))
    try:
        with running(worker):
            for kill in range(1, kills + 1):
                aim = count * kill // (kills + 1)
                wait_until(partial(reached, aim), 120)
                victim = chance.randrange(len(scripts))
                processes[victim].kill()
                processes[victim].wait()
                processes[victim] = start(*scripts[victim])
            wait_until(partial(reached, count), 300)
    finally:
        for each in processes:
            each.kill()
            each.wait()
