"""The example project's settings: closed by default, usable without configuration."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
KNOWN = (
    "ALLOWED_HOSTS", "DATABASE_URL", "DEBUG", "HTTPS", "NOTIFICATIONS_HASH_KEY", "SECRET_KEY",
    "SERVE_STATIC",
)  # fmt: skip
SERVER = "postgres://me@db.example.com/shop"
SHOW = "from django.conf import settings as s; print(s.DEBUG, s.SECRET_KEY)"


def run(*command: str, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python on the settings, with only the given environment variables."""
    inherited = {name: value for name, value in os.environ.items() if name not in KNOWN}
    environment |= {
        "DJANGO_SETTINGS_MODULE": "example_project.settings",
        "DELAYED_QUEUE_PG_DATA": str(directory / "pg"),
    }
    return subprocess.run(
        [sys.executable, *command], check=False, capture_output=True, text=True, cwd=REPOSITORY,
        env={**inherited, **environment},
    )  # fmt: skip


def test_debug_is_off_and_the_key_is_one_of_this_machine_in_a_file_of_its_owner(tmp_path):
    with ThreadPoolExecutor(4) as pool:  # that start at once, and agree on a key
        found = list(pool.map(lambda _: run("-c", SHOW, directory=tmp_path), range(4)))
    assert not any(each.returncode for each in found), found
    [said] = {each.stdout for each in found}
    debug, key = said.split()
    assert (debug, len(key) >= 50) == ("False", True)
    [kept] = tmp_path.iterdir()
    assert kept.read_text() == key
    assert kept.stat().st_mode & 0o777 == 0o600


def test_the_account_of_the_server_comes_through_the_directory_of_the_key(tmp_path):
    """The key is created before the server, whose account must enter the directory."""
    home = tmp_path / "not yet" / "there"
    assert run("-c", SHOW, directory=home).returncode == 0
    expected = 0o755 if os.geteuid() == 0 else 0o700
    assert [each.stat().st_mode & 0o777 for each in (home.parent, home)] == [expected] * 2


def test_without_a_key_nothing_comes_up_on_a_server_elsewhere(tmp_path):
    done = run("-c", SHOW, directory=tmp_path, DATABASE_URL=SERVER)
    assert done.returncode
    assert done.stderr.splitlines()[-1].startswith(
        "django.core.exceptions.ImproperlyConfigured: Set the SECRET_KEY environment variable"
    )
    assert list(tmp_path.iterdir()) == []


def test_the_demo_needs_no_key_on_a_server_elsewhere_either(tmp_path):
    done = run("manage.py", "demo", "--help", directory=tmp_path, DATABASE_URL=SERVER)
    assert done.returncode == 0, done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["pg.key"]


def test_where_no_key_can_be_kept_it_is_said_what_to_set(tmp_path):
    (tmp_path / "file").touch()
    done = run("-c", SHOW, directory=tmp_path / "file")
    assert "Set the SECRET_KEY environment variable" in done.stderr.splitlines()[-1]


def test_a_deployment_with_what_is_documented_passes_the_check(tmp_path):
    settings = {
        "SECRET_KEY": "a-key-of-random-characters-0123456789-" * 2,
        "ALLOWED_HOSTS": "queue.example.com",
        "DATABASE_URL": SERVER,
        "HTTPS": "1",
        "NOTIFICATIONS_HASH_KEY": "h4" * 30,
    }
    told = (REPOSITORY / "docs/operations/deploying-notifications.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in told for name in settings)
    check = ("manage.py", "check", "--deploy", "--fail-level", "WARNING")
    done = run(*check, directory=tmp_path, **settings)
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout
