"""The launcher's decisions that need no server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import environ
import psycopg.conninfo
import pytest

from example_project.postgres import (
    BinariesNotFoundError,
    EmbeddedPostgres,
    LauncherError,
    binaries,
    database_url,
    default_directory,
    find_binaries,
    installed_binaries,
)

REPOSITORY = Path(__file__).parents[2]


def lay_programs(directory: Path, version: str = "99.1") -> Path:
    directory.mkdir(parents=True)
    for program in binaries.PROGRAMS:
        (directory / program).write_text(f"#!/bin/sh\necho '{program} (PostgreSQL) {version}'\n")
        (directory / program).chmod(0o755)
    return directory


@pytest.fixture
def bare_machine(monkeypatch, tmp_path):
    """A machine without any PostgreSQL; returns the directory of the system's packages."""
    monkeypatch.delenv("DELAYED_QUEUE_PG_BIN", raising=False)
    monkeypatch.setattr(binaries, "WHEELS", ())
    monkeypatch.setattr(binaries, "SYSTEM", tmp_path / "system")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return tmp_path / "system"


def test_the_environment_names_the_binaries_first(monkeypatch, tmp_path):
    monkeypatch.setenv("DELAYED_QUEUE_PG_BIN", str(lay_programs(tmp_path / "bin")))
    assert find_binaries() == tmp_path / "bin"


def test_a_wrong_directory_in_the_environment_is_not_passed_over(monkeypatch, tmp_path):
    monkeypatch.setenv("DELAYED_QUEUE_PG_BIN", str(tmp_path))
    with pytest.raises(BinariesNotFoundError, match=f"{tmp_path} does not hold initdb, pg_ctl"):
        find_binaries()


def test_a_wheel_comes_before_the_system(bare_machine, monkeypatch, tmp_path):
    lay_programs(bare_machine / "18/bin")
    wheel = lay_programs(tmp_path / "some_wheel/pginstall/bin")
    (tmp_path / "some_wheel/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(binaries, "WHEELS", (("missing", "x"), ("some_wheel", "pginstall")))
    assert find_binaries() == wheel
    assert "some_wheel" not in sys.modules  # importing such a wheel has its own side effects


def test_the_newest_of_the_system_is_compared_as_a_number(bare_machine):
    lay_programs(bare_machine / "9/bin")
    newest = lay_programs(bare_machine / "15/bin")
    (bare_machine / "16/bin").mkdir(parents=True)  # client programs only
    assert list(installed_binaries()) == [newest, bare_machine / "9/bin"]


def test_postgres_on_the_path_is_found_through_a_link(bare_machine, tmp_path):
    found = lay_programs(tmp_path / "elsewhere")
    (tmp_path / "path").mkdir()
    (tmp_path / "path/postgres").symlink_to(found / "postgres")
    assert find_binaries() == found


def test_no_binaries_at_all_says_what_to_do(bare_machine):
    with pytest.raises(
        BinariesNotFoundError, match=r"embedded.*DELAYED_QUEUE_PG_BIN.*DATABASE_URL"
    ):
        EmbeddedPostgres()


def test_the_directory_comes_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("DELAYED_QUEUE_PG_DATA", str(tmp_path / "somewhere"))
    assert default_directory() == tmp_path / "somewhere"


@pytest.mark.parametrize("length", [10, 60, 61, 62, 63, 64, 65, 66, 67, 68, 90, 300])
def test_the_socket_fits_into_its_address_whatever_the_path(length):
    directory = Path("/") / ("x" * length)
    found = EmbeddedPostgres(directory).socket_directory
    assert len(str(found / ".s.PGSQL.65535")) <= 103
    assert found == EmbeddedPostgres(directory).socket_directory
    assert found != EmbeddedPostgres(Path("/") / ("y" * length)).socket_directory


def test_a_server_never_started_has_only_a_socket_url(tmp_path):
    embedded = EmbeddedPostgres(tmp_path)
    assert embedded.socket_url.startswith("postgresql://delayed_queue@:5432/delayed_queue?host=")
    with pytest.raises(LauncherError, match="was never started"):
        _ = embedded.url
    assert embedded.stop() is False
    assert embedded.pid is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", ["/run/a b/é'%", "127.0.0.1"])
def test_libpq_and_django_environ_read_the_same_url(host):
    url = database_url(user="me@home", password="p:@/?#%&", host=host, port=6000, name="a b")
    wanted = {"user": "me@home", "password": "p:@/?#%&", "host": host, "port": "6000"}
    assert psycopg.conninfo.conninfo_to_dict(url) == {**wanted, "dbname": "a b"}
    found = environ.Env.db_url_config(url)
    assert found.get("OPTIONS", {}).get("host") or found["HOST"] == host
    assert (found["USER"], found["PASSWORD"], found["PORT"]) == ("me@home", "p:@/?#%&", 6000)


def test_importing_the_settings_starts_nothing(tmp_path):
    script = (
        "import os; from django.conf import settings as s; d = s.DATABASES['default'];"
        "print(d['HOST'], d['PORT'], d['USER'], d['NAME'], s.EMBEDDED_POSTGRES.pid)"
    )
    major = EmbeddedPostgres(tmp_path).home.name
    answer = run_with_settings(script, DELAYED_QUEUE_PG_DATA=str(tmp_path))
    assert answer.endswith(f"{major}/socket 5432 delayed_queue delayed_queue None\n")
    assert list(tmp_path.iterdir()) == []


def test_the_settings_take_a_server_from_the_environment(tmp_path):
    script = (
        "from django.conf import settings as s; d = s.DATABASES['default'];"
        "print(d['HOST'], d['PORT'], d['NAME'], d['OPTIONS'], d['TEST'], s.EMBEDDED_POSTGRES)"
    )
    url = "postgresql://me@:6000/shop?host=/run/My%20Sockets&application_name=a"
    found = run_with_settings(
        script,
        DATABASE_URL=url,
        TEST_DATABASE_NAME="other",
        DELAYED_QUEUE_PG_BIN=str(tmp_path),
        SECRET_KEY="of the tests",
    )
    assert found == ("/run/My Sockets 6000 shop {'application_name': 'a'} {'NAME': 'other'} None\n")


def run_with_settings(script: str, **environment: str) -> str:
    """Run Python on the example project's settings and return its output."""
    read_by_settings = {"DATABASE_URL", "DEBUG", "SECRET_KEY", "TEST_DATABASE_NAME"}
    inherited = {name: value for name, value in os.environ.items() if name not in read_by_settings}
    result = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**inherited, "DJANGO_SETTINGS_MODULE": "example_project.settings", **environment},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout
