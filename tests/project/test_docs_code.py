"""The documentation's code runs (Q39: recipes), and its tables match the database."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener
from uuid import uuid4

import pytest
from django.db import connection

from delayed_queue import models
from delayed_queue.conf import find_problems
from delayed_queue.cron.registry import crontab
from delayed_queue.handlers import registry
from delayed_queue.observe import signals
from tests.support import documents
from tests.support.documents import DOCS, ROOT, Block
from tests.support.processes import wait_until

README = ROOT / "README.md"
QUICKSTART = DOCS / "quickstart.md"
PASSWORD = "of the quickstart"
SCHEMA = DOCS / "internals/schema.md"
# The models of that page's tables, in order.
DOCUMENTED: Any = (models.Message, models.DeadLetter, models.Sample)

TASKS: Any = {
    "default": {"BACKEND": "delayed_queue.tasks.DelayedQueueBackend", "QUEUES": ["default"]}
}

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def forget_registrations(settings: Any) -> Iterator[None]:
    """Serve tasks, and remove the handlers, schedules and receivers that a page registers."""
    settings.TASKS = TASKS
    queues = {each.queue for each in registry}
    schedules = {each.id for each in crontab}
    receivers = list(signals.acknowledged.receivers)
    yield
    for handler in list(registry):
        if handler.queue not in queues:
            registry.remove(handler.queue)
    for entry in list(crontab):
        if entry.id not in schedules:
            crontab.remove(entry)
    signals.acknowledged.receivers = receivers
    signals.acknowledged.sender_receivers_cache.clear()


def run(page: Path) -> dict[str, Any]:
    """Run the page's Python blocks in order as one module, with their tests."""
    module = ModuleType(f"page_{page.stem.replace('-', '_')}")
    sys.modules[module.__name__] = module  # tasks are found by this path
    namespace = vars(module)
    for block in documents.blocks(page, "python"):
        # Line numbers as in the page, so that a traceback points there.
        source = "\n" * (block.line - 1) + block.text
        exec(compile(source, str(block), "exec"), namespace)  # noqa: S102 # our own pages
    run_tests(namespace)
    return namespace


def run_tests(namespace: dict[str, Any]) -> None:
    for name, value in list(namespace.items()):
        if name.startswith("test_"):
            value()
        elif isinstance(value, type) and value.__module__ == namespace["__name__"]:
            run_case(value)


def run_case(cls: type) -> None:
    if not issubclass(cls, unittest.TestCase):
        return
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(cls).run(result)
    assert result.testsRun > 0
    assert [text for _, text in result.errors + result.failures] == []


def pages_with_code() -> list[Any]:
    return [
        pytest.param(page, id=documents.name_of(page))
        for page in documents.pages()
        if documents.blocks(page, "python") and page not in (README, QUICKSTART)
    ]


@pytest.mark.parametrize("page", pages_with_code())
def test_code_of_the_page_runs(page: Path) -> None:
    namespace = run(page)
    assert find_problems(namespace.get("DELAYED_QUEUE", {})) == []


class TestQuickstart:
    """Follow the page to the letter: files, commands and outputs, in a new project."""

    @pytest.mark.slow
    def test_it_works(self, tmp_path: Path) -> None:
        steps = documents.blocks(QUICKSTART, "python", "shell", "text")
        output = ""
        with database() as name:
            for block in steps:
                if block.language == "text":
                    assert_said(output, block)
                else:
                    output = followed(block, tmp_path, name)
        assert len([block for block in steps if block.language == "text"]) >= 5


def assert_said(output: str, block: Block) -> None:
    """Find the block's lines in the output, in order; an ellipsis matches anything."""
    said = iter(output.splitlines())
    for line in block.text.splitlines():
        pattern = ".*".join(map(re.escape, line.split("…")))
        assert any(re.fullmatch(pattern, each) for each in said), f"{block}: {line}\n{output}"


def followed(block: Block, directory: Path, database_name: str) -> str:
    """Run the block; return its output."""
    if block.language == "shell":
        return "".join(command(line, directory) for line in block.text.splitlines())
    file = re.match(r"# (\S+\.py)\n", block.text)
    if file is None:
        return manage(directory, "shell", "--command", block.text)
    path = directory / file[1]
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    after = settings_of(database_name) if path.name == "settings.py" else ""
    path.write_text(before + block.text + after, encoding="utf-8")
    return ""


def command(line: str, directory: Path) -> str:
    match line.split():
        case ["pip" | "createdb", *_]:  # installed already; the database is created below
            return ""
        case ["django-admin", *arguments]:
            return python(directory, "-m", "django", *arguments)
        case ["python", "manage.py", "createsuperuser", *arguments]:
            return manage(directory, "createsuperuser", "--noinput", *arguments)
        case ["python", "manage.py", "runserver", port]:
            assert port in QUICKSTART.read_text(encoding="utf-8").partition("http://127.0.0.1:")[2]
            return see_the_admin(directory)
        case ["python", "manage.py", *arguments]:
            return manage(directory, *arguments)
    raise AssertionError(f"The quickstart has a command that is not followed: {line}")


def see_the_admin(directory: Path) -> str:
    """Serve the project, log in, and find the queue and the message in the admin."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    process = subprocess.Popen(
        [sys.executable, "manage.py", "runserver", "--noreload", address],
        cwd=directory, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    cookies = CookieJar()
    browser = build_opener(HTTPCookieProcessor(cookies))

    def page(path: str, **form: str) -> str:
        data = urlencode(form).encode() if form else None
        with browser.open(f"http://{address}/admin/{path}", data, timeout=30) as answer:
            return str(answer.read(), "utf-8")

    def answers() -> bool:
        try:
            return bool(page("login/"))
        except URLError:
            return False

    try:
        wait_until(answers)
        token = str(next(each.value for each in cookies if each.name == "csrftoken"))
        known = {"username": "admin", "password": PASSWORD, "csrfmiddlewaretoken": token}
        page("login/?next=/admin/", **known)
        assert "orders" in page("delayed_queue/queueoverview/")
        assert "A-19" in page("delayed_queue/message/")
    finally:
        process.kill()
        process.wait()
    return ""


def manage(directory: Path, *arguments: str) -> str:
    return python(directory, "manage.py", *arguments)


def environment() -> dict[str, str]:
    given = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    return {**given, "PYTHONPATH": str(ROOT), "DJANGO_SUPERUSER_PASSWORD": PASSWORD}


def python(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory, env=environment(), timeout=60, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@contextmanager
def database() -> Iterator[str]:
    """Create an empty database on the server of the tests, and drop it."""
    name = f"quickstart_{uuid4().hex}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        try:
            yield name
        finally:
            cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


def settings_of(database_name: str) -> str:
    """Return the settings line with the database of the quickstart."""
    found = connection.settings_dict
    here = {name: found[name] for name in ("USER", "PASSWORD", "HOST", "PORT")}
    return f"\nDATABASES['default'] |= {here | {'NAME': database_name}!r}\n"


class TestSchema:
    def test_columns_are_those_of_the_database_and_of_the_models(self) -> None:
        header = ("column", "type", "Django field", "why")
        for rows, model in zip(documents.tables(SCHEMA, *header), DOCUMENTED, strict=True):
            cells = [[documents.code(each) for each in row[:3]] for row in rows]
            assert {column: kind for column, kind, _ in cells} == types_of(model._meta.db_table)
            named = {each.column: each.name for each in model._meta.concrete_fields}
            assert {column: name for column, _, name in cells} == named

    def test_indexes_are_all_there_are(self) -> None:
        rows = documents.table(SCHEMA, "index", "on", "why")
        documented = {documents.code(row[0]): row[1] for row in rows}
        existing = indexes()
        assert documented.keys() == existing.keys()
        for name, definition in existing.items():
            on = definition.partition(" WHERE ")[0].partition("(")[2]
            on = re.sub(r"::text|::character varying", "", on)
            columns = re.findall(r'"?(\w+)"?', on)
            said = documents.INLINE_CODE.findall(documented[name].partition(" where ")[0])
            assert said == columns, name
            is_unique = " UNIQUE " in definition and not name.endswith("_pkey")
            assert ("unique" in documented[name]) == is_unique
            assert (" where " in documented[name]) == (" WHERE " in definition)

    def test_storage_parameters_are_set(self) -> None:
        rows = documents.table(SCHEMA, "parameter", "value", "why")
        documented = {f"{documents.code(row[0])}={documents.code(row[1])}" for row in rows}
        query = "SELECT unnest(reloptions) FROM pg_class WHERE oid = 'delayed_queue'::regclass"
        assert documented == {option for (option,) in selected(query)}


def selected(query: str, *params: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, params)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def types_of(table: str) -> dict[str, str]:
    rows = selected(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
        table,
    )
    return {name: kind.replace("character varying", "varchar") for name, kind in rows}


def indexes() -> dict[str, str]:
    query = "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = ANY (%s)"
    return dict(selected(query, [[each._meta.db_table for each in DOCUMENTED]]))
