"""The documentation matches the code: names, defaults, trees, tables."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management.base import BaseCommand

import delayed_queue
from delayed_queue import (
    CronEntry,
    CronMessage,
    CronSchedule,
    DailySchedule,
    DelayedQueue,
    Envelope,
    PeriodicSchedule,
    RetryPolicy,
    exceptions,
)
from delayed_queue.batch import Batch
from delayed_queue.conf import QueueSettings, find_problems
from delayed_queue.cron.rules import Schedule, ZonedSchedule
from delayed_queue.cron.service import CronService, InstallerHandle, RepeatingThread
from delayed_queue.cron.ticking import TickReport
from delayed_queue.http.conf import ApiSettings, CallbackSettings
from delayed_queue.management.commands import installcron, runqueueworker
from delayed_queue.messages import QueueStats, StoredMessage
from delayed_queue.notifications.conf import CONSOLES, NotificationSettings
from delayed_queue.observe import signals
from delayed_queue.retries import Backoff
from delayed_queue.spark.settings import SparkSettings
from tests.support import documents
from tests.support.documents import DOCS, ROOT
from tests.support.statements import STATEMENTS

API = (DOCS / "reference/api.md", DOCS / "reference/api-apps.md")
SETTINGS = DOCS / "reference/settings.md"
EXCEPTIONS = DOCS / "reference/exceptions.md"
WORKERS = DOCS / "guides/workers.md"
WATCHING = DOCS / "guides/watching-workers.md"
CRON = DOCS / "guides/cron.md"
CONCURRENCY = DOCS / "internals/concurrency.md"

# Modules of the API reference, for names defined elsewhere.
HOMES = {"delayed_queue.cron.ticking": "delayed_queue.cron.service"}
VALUES: dict[str, Any] = {
    "timedelta": timedelta, "datetime": datetime, "UTC": UTC,
    "RetryPolicy": RetryPolicy, "Backoff": Backoff, "ApiSettings": ApiSettings,
    "CallbackSettings": CallbackSettings,
    "NotificationSettings": NotificationSettings, "CONSOLES": CONSOLES,
}  # fmt: skip


def evaluated(text: str, **more: Any) -> Any:
    return eval(text, {**VALUES, **more})  # noqa: S307 # our own pages


def defaults_of(cls: Any) -> dict[str, Any]:
    """Return the defaults of a dataclass, including those of factories."""
    made = cls()
    return {each.name: getattr(made, each.name) for each in fields(cls)}


class TestSettings:
    @pytest.mark.parametrize(
        ("header", "cls"),
        [
            ("key", QueueSettings),
            ("field", Backoff),
            ("api key", ApiSettings),
            ("callbacks key", CallbackSettings),
            ("notifications key", NotificationSettings),
            ("setting", SparkSettings),
        ],
        ids=str,
    )  # fmt: skip
    def test_keys_and_defaults_are_those_of_the_code(self, header: str, cls: Any) -> None:
        rows = documents.table(SETTINGS, header, "default", "meaning")
        documented = {documents.code(row[0]): evaluated(documents.code(row[1])) for row in rows}
        apps = {
            "API": ApiSettings(),
            "CALLBACKS": CallbackSettings(),
            "NOTIFICATIONS": NotificationSettings(),
            "SPARK": {},
        }
        assert documented == defaults_of(cls) | (apps if cls is QueueSettings else {})

    def test_arguments_of_an_entry_of_cron_are_those_of_the_code(self) -> None:
        rows = documents.table(SETTINGS, "argument", "default", "meaning")
        documented = {
            documents.code(row[0]): evaluated(documents.code(row[1])) if row[1] else MISSING
            for row in rows
        }
        assert documented == {each.name: each.default for each in fields(CronEntry)}

    def test_every_documented_default_is_a_legal_value(self) -> None:
        assert find_problems(defaults_of(QueueSettings)) == []

    def test_check_ids_are_those_of_the_code(self) -> None:
        rows = documents.table(SETTINGS, "id", "meaning")
        files = (ROOT / "delayed_queue").rglob("*.py")
        source = "".join(each.read_text(encoding="utf-8") for each in files)
        raised = set(re.findall(r'"(delayed_queue\.[EW]\d+)"', source))
        assert {documents.code(row[0]) for row in rows} == raised


class TestExceptions:
    def test_tree_is_that_of_the_code(self) -> None:
        (tree,) = documents.blocks(EXCEPTIONS, "text")
        drawn = list(_drawn(exceptions.DelayedQueueError))
        assert tree.text.splitlines() == drawn

    def test_each_class_has_its_row(self) -> None:
        classes = {
            name: each
            for name, each in vars(exceptions).items()
            if isinstance(each, type) and issubclass(each, exceptions.DelayedQueueError)
        }
        rows = documents.table(EXCEPTIONS, "exception", "also a", "raised when")
        documented = {documents.code(row[0]): row[1].strip("`") for row in rows}
        assert documented.keys() == classes.keys()
        for name, builtin in documented.items():
            assert not builtin or issubclass(classes[name], getattr(builtins, builtin))


def _drawn(cls: type, indent: str = "") -> Iterator[str]:
    """Yield the lines of the tree below a class, in the order of definition."""
    if not indent:
        yield cls.__name__
    children: list[type] = cls.__subclasses__()
    for child in children:
        is_last = child is children[-1]
        yield f"{indent}{'└── ' if is_last else '├── '}{child.__name__}"
        below = indent + ("    " if is_last else "│   ")
        yield from (line for line in _drawn(child, below) if child.__subclasses__())


def api_text() -> str:
    return "".join(map(documents.read, API))


def api_entries() -> list[tuple[str, str]]:
    """Return (module, entry) for every bullet of the API reference."""
    found = []
    for section in re.split(r"^## ", api_text(), flags=re.MULTILINE)[1:]:
        module = section.splitlines()[0].strip("`")
        if module.startswith("delayed_queue"):
            bullets = re.findall(r"^- `([^`]+)`:?$", section, re.MULTILINE)
            found += [(module, entry) for entry in bullets]
    return found


def parsed(entry: str) -> tuple[str, str | None]:
    """Split ``Class.method(arguments)``; the arguments are None without a call."""
    match = re.fullmatch(r"([\w.]+)(?:\((.*)\))?", entry)
    assert match is not None, entry
    return match[1], match[2]


def resolved(module: str, dotted: str) -> Any:
    found: Any = importlib.import_module(module)
    for name in dotted.split("."):
        known = {each.name for each in fields(found)} if is_dataclass(found) else set()
        found = name if name in known and not hasattr(found, name) else getattr(found, name)
    return found


def arguments_of(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    return [
        (each.name, each.kind, each.default)
        for each in inspect.signature(function).parameters.values()
        if each.name != "self"
    ]


class TestApi:
    @pytest.mark.parametrize(("module", "entry"), api_entries(), ids=lambda each: each)
    def test_each_entry_exists_with_its_signature(self, module: str, entry: str) -> None:
        dotted, arguments = parsed(entry)
        found = resolved(module, dotted)
        if arguments is None:
            return
        home = vars(importlib.import_module(found.__module__))
        stand_in = evaluated(f"lambda {arguments}: None", **home)
        assert arguments_of(stand_in) == arguments_of(found)

    def test_every_bullet_was_read(self) -> None:
        bullets = re.findall(r"^- `(?!manage)", api_text(), re.MULTILINE)
        assert len(bullets) == len(api_entries()) > 100

    @pytest.mark.parametrize(
        "module",
        [
            "delayed_queue",
            "delayed_queue.tasks",
            "delayed_queue.tasks.testing",
            "delayed_queue.testing",
        ],
    )
    def test_every_public_name_has_an_entry(self, module: str) -> None:
        # The core's test kit documents Drained.
        public = set(importlib.import_module(module).__all__) - {"__version__"}
        if module == "delayed_queue.tasks.testing":
            public -= {"Drained"}
        assert public <= documented_names(module)

    def test_every_signal_has_an_entry(self) -> None:
        public = {name for name, value in vars(signals).items() if _is_signal(value)}
        assert public == documented_names("delayed_queue.observe.signals")

    @pytest.mark.parametrize(
        "cls",
        [
            DelayedQueue, Envelope, Batch, StoredMessage, QueueStats, CronService, InstallerHandle,
            Schedule,
        ],
    )  # fmt: skip
    def test_every_public_member_has_an_entry(self, cls: type) -> None:
        members = {
            name
            for name, value in inspect.getmembers(cls)
            if not name.startswith("_") and not (cls is Batch and hasattr(tuple, name))
        }
        documented = documented_members_of(cls)
        # Internal members: an envelope's link to its queue, instants in milliseconds, parts of a
        # thread.
        hidden = {"leases", "envelopes", "decode", "in_thread", "event"}
        hidden |= {m for m in members if m.endswith("_ms")}
        hidden |= {m for m in members - documented if hasattr(RepeatingThread, m)}
        # Asynchronous twins are documented together.
        hidden |= {m for m in members - documented if m[0] == "a" and m[1:] in documented}
        assert members - hidden == documented

    @pytest.mark.parametrize(
        "cls",
        [
            CronEntry, CronMessage, CronSchedule, DailySchedule, PeriodicSchedule, TickReport,
            ZonedSchedule,
        ],
    )  # fmt: skip
    def test_every_member_that_is_no_argument_has_an_entry(self, cls: type[Any]) -> None:
        members = {name for name in dir(cls) if not name.startswith("_")}
        inherited = {name for base in cls.__bases__ for name in dir(base)}
        arguments = {each.name for each in fields(cls)} if is_dataclass(cls) else set()
        assert members - inherited - arguments == documented_members_of(cls)


def _is_signal(value: Any) -> bool:
    return type(value).__name__ == "Signal"


def documented_members_of(cls: type) -> set[str]:
    is_public = hasattr(delayed_queue, cls.__name__)
    module = "delayed_queue" if is_public else HOMES.get(cls.__module__, cls.__module__)
    return {
        name.partition(".")[2]
        for name in documented_members(module)
        if name.startswith(f"{cls.__name__}.")
    }


def documented_members(module: str) -> set[str]:
    return {parsed(entry)[0] for home, entry in api_entries() if home == module}


def documented_names(module: str) -> set[str]:
    return {name.partition(".")[0] for name in documented_members(module)}


class TestWorkers:
    def test_options_are_those_of_the_command(self) -> None:
        rows = documents.table(WORKERS, "option", "default", "meaning")
        documented = {documents.code(row[0]).partition(" ")[0] for row in rows}
        assert documented == own_options(runqueueworker.Command())

    def test_options_of_installcron_are_those_of_the_command(self) -> None:
        rows = documents.table(CRON, "command", "")
        text = " ".join(row[0] for row in rows)
        assert set(re.findall(r"--[a-z-]+", text)) == own_options(installcron.Command())

    def test_settings_named_as_defaults_exist(self) -> None:
        rows = documents.table(WORKERS, "option", "default", "meaning")
        named = set(re.findall(r"setting `(\w+)`", " ".join(row[1] for row in rows)))
        assert {"CONCURRENCY", "BATCH_SIZE"} <= named <= defaults_of(QueueSettings).keys()

    def test_log_events_are_those_of_the_code(self) -> None:
        rows = documents.table(WATCHING, "event", "level", "when")
        documented = {
            (name, row[1]) for row in rows for name in documents.INLINE_CODE.findall(row[0])
        }
        assert documented == logged_events()

    def test_signals_are_those_of_the_code(self) -> None:
        rows = documents.table(WATCHING, "signal", "arguments", "sent")
        documented = {name for row in rows for name in documents.INLINE_CODE.findall(row[0])}
        assert documented == {name for name, value in vars(signals).items() if _is_signal(value)}


def own_options(own: BaseCommand) -> set[str]:
    return documents.options_of(own) - documents.options_of(BaseCommand())


def logged_events() -> set[tuple[str, str]]:
    """Return the events in the source of the package, each with its level."""
    found = set()
    for path in (ROOT / "delayed_queue").rglob("*.py"):
        if "notifications" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name("logger"), attr=level),
                    args=[ast.Constant(value=str(text)), *_],
                ):
                    found.add((text.partition(" ")[0].removeprefix("event="), level.upper()))
                case ast.Call(
                    func=ast.Name("log"),
                    args=[ast.Attribute(attr=level), ast.Constant(value=str(event)), *_],
                ):
                    found.add((event, level))
                case ast.Assign(targets=[ast.Name("event")], value=ast.Constant(value=str(event))):
                    found.add((event, "ERROR"))
    return found


def guarantees() -> list[list[str]]:
    """Return the rows of the table of statements."""
    header = ("statement", "guarantees", "race it closes, cost it avoids", "tests")
    return documents.table(CONCURRENCY, *header)


class TestInternals:
    def test_every_statement_is_explained_and_no_other(self) -> None:
        names = "".join(row[0] for row in guarantees())
        assert sorted(documents.INLINE_CODE.findall(names)) == sorted(STATEMENTS)

    def test_every_guarantee_names_its_tests(self) -> None:
        for row in guarantees():
            paths = documents.INLINE_CODE.findall(row[3])
            assert paths, row[0]
            assert [each for each in paths if not (ROOT / f"tests/{each}.py").exists()] == []

    @pytest.mark.parametrize("page", sorted(DOCS.glob("internals/concurrency-*.md")))
    def test_tests_that_are_named_exist(self, page: Path) -> None:
        pattern = r"(?:`(tests/[\w/]+\.py)`: +)?`(test_\w+)`"
        path, named = "", 0
        for found in re.finditer(pattern, " ".join(documents.prose(page).split())):
            path, named = found[1] or path, named + 1
            source = (ROOT / path).read_text(encoding="utf-8")
            assert f"def {found[2]}(" in source, f"{path} has no {found[2]}"
        assert named > 0
