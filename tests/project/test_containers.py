"""The image, the compose file and the workflows: commands, files and variables exist."""

from __future__ import annotations

import json
import re
import runpy
from datetime import timedelta
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from asgiref.sync import async_to_sync
from asgiref.testing import ApplicationCommunicator
from django.core.management import get_commands, load_command_class
from django.urls import resolve
from django.utils.module_loading import import_string

from delayed_queue.conf import QueueSettings
from delayed_queue.http.api.service import readyz
from tests.support.documents import ROOT, read

DOCKERFILE = read(ROOT / "Dockerfile").replace("\\\n", "")
COMPOSE: dict[str, Any] = yaml.safe_load(read(ROOT / "compose.yaml"))
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: each for name, each in SERVICES.items() if "build" in each}
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} (.+)$", DOCKERFILE, re.MULTILINE)


def parse(command: list[str]) -> None:
    """Parse the command with its own parser, which raises or exits at a mistake."""
    match command:
        case ["python", "manage.py", name, *arguments]:
            found = load_command_class(get_commands()[name], name)
            found.create_parser("manage.py", name).parse_args(arguments)
        case ["uvicorn", *arguments]:
            application = import_string("uvicorn.main.main").make_context("uvicorn", arguments)
            module, _, attribute = application.params["app"].partition(":")
            assert callable(import_string(f"{module}.{attribute}"))
        case _:
            raise AssertionError(f"An unknown program: {command}")


class TestImage:
    def test_what_it_copies_exists_and_is_sent_to_the_builder(self) -> None:
        copied = [
            name
            for line in instructions("COPY")
            if not line.startswith("--from")
            for name in line.split()[:-1]
        ]
        allowed = set(re.findall(r"^!(.+)$", read(ROOT / ".dockerignore"), re.MULTILINE))
        assert set(copied) == allowed
        assert all((ROOT / name).exists() for name in copied)

    def test_the_process_at_the_top_is_a_worker_without_a_shell(self) -> None:
        (command,) = instructions("CMD")
        parse(json.loads(command))
        assert json.loads(command)[2] == "runqueueworker"

    def test_it_runs_as_nobody_special(self) -> None:
        (user,) = instructions("USER")
        assert any(f" {user}" in line for line in instructions("RUN") if "useradd" in line)


class TestCompose:
    @pytest.mark.parametrize("name", OURS)
    def test_the_command_is_understood(self, name: str) -> None:
        parse(SERVICES[name]["command"])

    def test_there_is_one_of_each(self) -> None:
        assert SERVICES.keys() == {"postgres", "migrate", "worker", "api", "admin"}
        page = read(ROOT / "docs/operations/containers.md")
        assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == SERVICES.keys()

    def test_what_they_wait_for_exists_and_can_come_true(self) -> None:
        for each in OURS.values():
            for name, wait in each["depends_on"].items():
                needed = {"service_healthy": "healthcheck"}.get(wait["condition"], "command")
                assert needed in SERVICES[name]
        assert SERVICES["migrate"]["restart"] == "no"  # otherwise it would never have ended
        assert all("migrate" in OURS[name]["depends_on"] for name in OURS.keys() - {"migrate"})

    def test_every_variable_is_one_that_the_settings_read(self) -> None:
        settings = read(ROOT / "example_project/settings.py")
        known = set(re.findall(r"env\.\w+\(\s*\"(\w+)\"", settings))
        assert {name for each in OURS.values() for name in each["environment"]} <= known

    def test_secrets_have_no_default(self) -> None:
        text = read(ROOT / "compose.yaml")
        page = read(ROOT / "docs/operations/containers.md")
        for name in ("POSTGRES_PASSWORD", "SECRET_KEY", "NOTIFICATIONS_HASH_KEY"):
            assert re.findall(rf"\$\{{{name}(.)", text)
            assert set(re.findall(rf"\$\{{{name}(..)", text)) == {":?"}
            assert name in page
        ignored = read(ROOT / ".gitignore").split()
        assert any(fnmatch(".env", pattern) for pattern in ignored)

    def test_ports_are_open_to_this_machine_only(self) -> None:
        ports = [port for each in SERVICES.values() for port in each.get("ports", [])]
        assert len(set(ports)) == 2
        assert all(re.fullmatch(r"127\.0\.0\.1:\d+:8000", port) for port in ports)
        assert instructions("EXPOSE") == ["8000"]

    def test_a_worker_has_the_time_to_stop(self) -> None:
        given = timedelta(seconds=int(SERVICES["worker"]["stop_grace_period"].removesuffix("s")))
        assert given > QueueSettings().SHUTDOWN_TIMEOUT + timedelta(seconds=5)

    def test_health_is_asked_where_it_is_told(self) -> None:
        worker = SERVICES["worker"]
        _, *look = worker["healthcheck"]["test"]
        parse(look)
        assert look[-1] == worker["command"][worker["command"].index("--health-file") + 1]
        for name in ("api", "admin"):
            program = SERVICES[name]["healthcheck"]["test"][-1]
            compile(program, "healthcheck", "exec")
            (path,) = re.findall(r"http://127\.0\.0\.1:8000(/[\w/]+)", program)
            assert resolve(path, "example_project.urls").func is readyz


class TestStaticFiles:
    @pytest.mark.parametrize(("served", "status"), [(True, 200), (False, 404)])
    def test_the_application_serves_them_where_it_is_told_to(self, settings, served, status):
        settings.SERVE_STATIC = served
        application = runpy.run_path(str(ROOT / "example_project/asgi.py"))["application"]
        assert async_to_sync(status_of)(application, "/static/delayed_queue/admin.css") == status


async def status_of(application: Any, path: str) -> int:
    scope = {
        "type": "http", "method": "GET", "path": path, "headers": [(b"host", b"testserver")],
        "query_string": b"",
    }  # fmt: skip
    client = ApplicationCommunicator(application, scope)
    await client.send_input({"type": "http.request"})
    found: int = (await client.receive_output(timeout=10))["status"]
    await client.wait(timeout=10)
    return found


class TestHosts:
    @pytest.mark.parametrize("path", WORKFLOWS, ids=lambda each: each.stem)
    def test_workflows_run_what_exists(self, path: Path) -> None:
        jobs = yaml.safe_load(read(path))["jobs"]
        runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
        makefile = read(ROOT / "Makefile")
        for target in re.findall(r"^make ([\w-]+)", "\n".join(runs), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
        assert all((ROOT / run).exists() for run in runs if run.startswith(".ci/"))
        assert any(run.startswith(("make ", ".ci/run")) for run in runs)

    def test_every_pair_is_tested(self) -> None:
        ci = yaml.safe_load(read(ROOT / ".github/workflows/ci.yml"))["jobs"]
        found = {
            each["environment"]: each["python"]
            for each in ci["versions"]["strategy"]["matrix"]["include"]
        }
        packaging = runpy.run_path(str(ROOT / "tests/project/test_packaging.py"))
        assert found.keys() == {x for x in packaging["environments"]() if x.startswith("py")}
        assert all(name.startswith(f"py{p}-".replace(".", "")) for name, p in found.items())

    def test_nothing_may_write_to_the_repository(self) -> None:
        for path in WORKFLOWS:
            assert yaml.safe_load(read(path))["permissions"] == {"contents": "read"}
