"""A hostile request costs no more than many good ones of its size (J14)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, Final

import pytest
from django.test import Client

from delayed_queue import exceptions
from delayed_queue.exceptions import InvalidJob
from delayed_queue.http.api.bodies import lines_of, parse
from delayed_queue.http.api.jobs import MAX_BYTES
from delayed_queue.http.api.problems import MAX_ERRORS, Problem
from delayed_queue.http.callbacks.guard import check_url
from delayed_queue.http.conf import ApiSettings
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.models import Message
from tests.http.api.calls import JOB, post

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.http.api.urls")]

LIMITS: Final = ApiSettings()
NDJSON: Final = "application/x-ndjson"


def job_with(field: str, size: int, part: str, *, opening: str = "[", closing: str = "]") -> bytes:
    """Return a job of about that size, whose field consists of that many parts."""
    room = size - 60
    parts = ",".join([part] * (room // (len(part.encode()) + 1)))
    return f'{{"jobId":"a","topic":"orders","{field}":{opening}{parts}{closing}}}'.encode()


def unknown_names(size: int, width: int = 4) -> bytes:
    names = (f'"{each:0{width}x}":1' for each in range(size // (width + 5)))
    return f'{{"jobId":"a","topic":"orders",{",".join(names)}}}'.encode()


def text(field: str, size: int, unit: str) -> bytes:
    return json.dumps({**JOB, field: unit * (size // len(unit))}, ensure_ascii=False).encode()


# The cheapest hostile bodies found, one for each processing step.
HOSTILE: Final[dict[str, Callable[[int], bytes]]] = {
    "short unknown names": unknown_names,
    "unknown names like a known one": lambda size: unknown_names(size * 3 // 4).replace(
        b'"0', b'"jobI'
    ),
    "long unknown names": lambda size: unknown_names(size, 1000),
    "digits of a step": lambda size: text("ladder", size, "9"),
    "points of a step": lambda size: text("ladder", size, "9."),
    "blanks of a ladder": lambda size: text("ladder", size, "1s "),
    "an instant": lambda size: text("runAt", size, "2"),
    "a host of another script": lambda size: text("url", 2000, "é").replace(b':"', b':"http://', 3),
    "labels of a host": lambda size: text("url", 1900, "a.").replace(b'"url": "', b'"url": "http://'),
    "escapes of a path": lambda size: text("url", 1900, "%zz").replace(
        b'"url": "', b'"url": "http://a.com/'
    ),
    "a topic": lambda size: text("topic", size // 2, "é"),
    "an id": lambda size: text("jobId", size // 3, "\u2028"),
    "large integers": lambda size: job_with("body", size, "9" * 4300),
    "a long fraction": lambda size: job_with("body", 200, "1." + "9" * (size - 100)),
    "large powers": lambda size: job_with("body", size, "1e308"),
    "an infinity at the end": lambda size: job_with("body", size, "1", closing=",1e999]"),
    "a name twice at the end": lambda size: job_with("body", size, "1", closing=',{"":1,"":1}]'),
    "colons in texts": lambda size: job_with("body", size, '":"'),
    "escapes": lambda size: text("body", size // 2, "\n"),
    "names of a body": lambda size: b'{"jobId":"a","topic":"t","body":%s}' % unknown_names(size),
    "lists too deep": lambda size: b'{"body":' + b"[" * size,
}  # fmt: skip


def answered(raw: bytes) -> int:
    """Process the body of a job up to its storage; return the answer's size."""
    try:
        job_from(parse(raw, LIMITS.DEPTH), check_url=check_url)
    except InvalidJob as error:
        return len(
            Problem(400, "", errors=[{path: wrong} for path, wrong in error.errors]).as_json()
        )
    except Problem as problem:
        return len(problem.as_json())
    return 0


def seconds_of(call: Callable[[], object], tries: int = 5) -> float:
    """Return the CPU time of the fastest of some tries."""
    spent = []
    for _ in range(tries):
        began = time.process_time()
        call()
        spent.append(time.process_time() - began)
    return min(spent)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_body_takes_much_longer_than_a_good_one_of_its_size(name: str) -> None:
    """At the largest size read on the event loop, against a good body of many small values."""
    hostile = HOSTILE[name](MAX_BYTES)
    good = job_with("body", MAX_BYTES, "1")
    assert len(hostile) < 1.2 * MAX_BYTES

    assert answered(good) == 0
    assert answered(hostile) < 4096, "an answer quotes only the start"
    assert seconds_of(lambda: answered(hostile)) < 4 * seconds_of(lambda: answered(good))


@pytest.fixture
def guesses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the input of each guess."""
    made: list[str] = []

    def count(name: str, *args: Any, **kwargs: Any) -> Any:
        made.append(name)
        return get_close_matches(name, *args, **kwargs)

    monkeypatch.setattr(exceptions, "get_close_matches", count)
    return made


def test_an_answer_has_twenty_errors_and_says_that_there_are_more(caller, guesses):
    problem = post(caller, "/jobs", unknown_names(15_000)).json()
    assert len(problem["errors"]) == MAX_ERRORS == 20
    assert problem["detail"] == "There are more than 20 errors."
    assert len(guesses) <= 3

    few = post(caller, "/jobs", {**JOB, "topik": 1, "delay": -1}).json()
    assert [each["path"] for each in few["errors"]] == ["topik", "delay"]
    assert "topic" in few["errors"][0]["message"]
    assert "detail" not in few


def test_names_of_a_lease_are_counted_and_cut_too(caller: Client) -> None:
    raw = json.dumps({f"{each:0200}": 1 for each in range(1000)}).encode()
    problem = post(caller, "/topics/orders/jobs/a/finish", raw).json()
    assert len(problem["errors"]) == 20
    assert max(len(each["path"]) for each in problem["errors"]) <= 100


@pytest.mark.parametrize("lines", [False, True])
def test_a_bulk_guesses_nothing(caller: Client, guesses: list[str], lines: bool) -> None:
    item = unknown_names(3000)
    raw = b"\n".join([item] * 50) if lines else b"[" + b",".join([item] * 50) + b"]"
    answer = post(caller, "/jobs/bulk", raw, content_type=NDJSON if lines else "application/json")
    problems = [each["problem"] for each in answer.json()["items"]]
    assert len(problems) == 50
    assert {len(each["errors"]) for each in problems} == {20}
    assert guesses == []


def test_lines_that_are_too_many_or_blank_are_not_collected() -> None:
    size = 1024 * 1024
    blanks = [b"\n" * size, b" " * size, b"\r\n\t " * (size // 4)]
    good = b"\n".join([b"x" * 1000] * (size // 1001))
    for each in blanks:
        assert lines_of(each, 10) == []
        assert seconds_of(lambda each=each: lines_of(each, 10)) < 0.1  # type: ignore[misc]
    assert len(lines_of(good, 2000)) == size // 1001
    with pytest.raises(Problem) as refused:
        lines_of(b"1\n" * size, 10)
    assert (refused.value.status, refused.value.code) == (413, "too_many_items")


class TestRate:
    """A bulk counts each of its items."""

    def bulk(self, client: Client, count: int, first: int = 0) -> Any:
        return post(client, "/jobs/bulk", [{**JOB, "jobId": str(first + n)} for n in range(count)])

    def test_items_are_counted(self, make_client: Any) -> None:
        client = make_client(rate=0.01, burst=10)
        assert self.bulk(client, 6).status_code == 202
        refused = self.bulk(client, 6, 6)
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
        # Two items are over the rate, and the refused request counts as one.
        assert 290 < int(refused.headers["Retry-After"]) <= 300
        assert Message.objects.count() == 6
        # The refused one counts as one request.
        assert self.bulk(client, 3, 6).status_code == 202
        assert self.bulk(client, 1, 9).status_code == 429

    def test_more_than_the_burst_are_never_taken(self, make_client: Any) -> None:
        refused = self.bulk(make_client(rate=5, burst=10), 11)
        assert (refused.status_code, refused.json()["code"]) == (413, "too_many_items")
        assert "10" in refused.json()["detail"]
        assert not Message.objects.exists()

    def test_without_a_rate_nothing_is(self, caller: Client) -> None:
        assert self.bulk(caller, 300).status_code == 202
