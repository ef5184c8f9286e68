"""Workers without a usable database: their exit codes and errors (W7)."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final
from urllib.parse import quote, urlsplit, urlunsplit

import pytest

from delayed_queue.worker.process.supervisor import EXIT_REFUSED, EXIT_UNAVAILABLE
from tests.support.processes import database_url, worker
from tests.support.sampling import sample

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


def without_server(url: str) -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"postgres://nobody@127.0.0.1:{free.getsockname()[1]}/none"


def of_no_database(url: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path="/no_such_database"))


def of_no_user(url: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"no_such_user@{host}"))


def without_permission(url: str) -> str:
    """A role that every server has, and that may read no table."""
    options = "options=" + quote("-c role=pg_signal_backend")
    return f"{url}{'&' if urlsplit(url).query else '?'}{options}"


REFUSALS: Final = {
    "no database": (of_no_database, 'database "no_such_database" does not exist'),
    "no user": (of_no_user, "no_such_user"),
    "no permission": (without_permission, "permission denied for table django_migrations"),
}


def end_of(url: str, *arguments: str) -> tuple[int, list[str], str]:
    """Return the exit code of a worker, its last sentences, and its whole output."""
    variables = {"DATABASE_URL": url, "BACKOFF_SECONDS": "1"}
    with worker("--queue", "ledger", *arguments, **variables) as process:
        code, output = process.ended(90)
    return code, [each for each in output.splitlines() if "CommandError" in each], output


@pytest.mark.parametrize("processes", sample(["0", "1"], "1"))
def test_a_burst_gives_up_on_a_database_that_stays_away(processes: str) -> None:
    url = without_server(database_url())
    code, sentences, output = end_of(url, "--burst", "--processes", processes)
    assert code == EXIT_UNAVAILABLE
    assert len(sentences) == 1
    assert "was away for" in sentences[0]
    assert "Traceback" not in output


@pytest.mark.parametrize("refusal", sample(REFUSALS, "no database", "no permission"))
def test_a_worker_that_is_refused_at_its_start_ends_with_one_sentence(refusal: str) -> None:
    alter, said = REFUSALS[refusal]
    code, sentences, output = end_of(_altered(alter))
    assert code == EXIT_REFUSED
    assert len(sentences) == 1
    assert said in sentences[0]
    assert output.count("event=process_died") == 1
    assert "Traceback" not in output


def _altered(alter: Callable[[str], str]) -> str:
    return alter(database_url())
