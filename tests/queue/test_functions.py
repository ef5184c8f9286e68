"""The SQL functions beside `DelayedQueue`: JSON, refusals, batches, leases, rights (S1 to S6)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from itertools import takewhile
from typing import Any, Final

import psycopg
import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from delayed_queue import DelayedQueue, Groups, ScheduledMessage
from delayed_queue.db.wakeups import channel_of
from delayed_queue.models import DeadLetter, Message
from delayed_queue.queue.fingerprints import fingerprint
from delayed_queue.testing import dead_letters
from tests.support.answers import polled, present, sqlstate_of
from tests.support.concurrency import raw_connection

pytestmark = pytest.mark.django_db


@pytest.fixture
def queue() -> DelayedQueue:
    return DelayedQueue("polyglot")


def rows(statement: str, *params: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return list(cursor.fetchall())


def value(statement: str, *params: Any) -> Any:
    ((found,),) = rows(statement, *params)
    return found


def offer(payload: str | None, key: str | None = "k", more: str = "", *params: Any) -> str:
    statement = f"SELECT delayed_queue_offer('polyglot', %s, %s::jsonb{more})"
    return str(value(statement, key, payload, *params))


def claim(n: int = 10) -> list[tuple[Any, ...]]:
    return rows("SELECT * FROM delayed_queue_claim('polyglot', %s)", n)


@contextmanager
def refused(state: str, words: str) -> Iterator[None]:
    with pytest.raises(Exception, match=words) as caught:
        yield
    assert sqlstate_of(caught.value) == state


# S3: bytes

_TEXT: Final = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
_JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(_JSON)
def test_s3_the_same_json_is_written_as_the_same_bytes(document: Any):
    written = value("SELECT delayed_queue_json(%s::jsonb)", json.dumps(document))
    assert written.encode() == DelayedQueue("q").codec.encode(document)


@pytest.mark.parametrize("first", ["python", "sql"])
def test_s3_the_same_offer_by_the_other_side_is_ignored(queue: DelayedQueue, first: str):
    document = {"b": 1, "aa": [1, {"z": None, "é": "a, b: c"}], "n": 12.5, "": {}}
    at = datetime(2040, 1, 1, 0, 0, 0, 1999, tzinfo=UTC)
    ways = [
        lambda: str(queue.offer_or_update("k", document, at)),
        lambda: offer(json.dumps(document), "k", ", %s", at),
    ]
    assert [each() for each in (ways if first == "python" else ways[::-1])] == [
        "created", "ignored",
    ]  # fmt: skip
    assert present(queue.read("k")).payload == document


def test_s3_a_message_of_either_side_is_handled_by_the_other(queue: DelayedQueue):
    offer('{"total": 40}', "a", ", headers => '{\"h\": 1}', \"group\" => 'g'")
    envelope = polled(queue)
    assert (envelope.payload, envelope.headers, envelope.group) == ({"total": 40}, {"h": 1}, "g")
    assert envelope.acknowledge()
    queue.offer_or_update("b", [1], headers={"h": 2}, group="g")
    ((_, key, payload, attempt, lease, _, _, headers, group),) = claim()
    assert (key, json.loads(payload), attempt, json.loads(headers), group) == (
        "b", [1], 1, {"h": 2}, "g",
    )  # fmt: skip
    assert value("SELECT delayed_queue_acknowledge(%s)", lease) == 1


# S1, S3, S6: refusals

LONG: Final = "1" * 4_301
REFUSED: Final = {
    "no queue": ("offer", "NULL, 'k', '1'", "QD001", "^A queue needs a name: a non-empty string"),
    "an empty queue": ("offer", "'', 'k', '1'", "QD001", "^A queue needs a name"),
    "a long kind": ("offer", "repeat('q', 96), 'k', '1'", "QD001", "has 101 characters; at most"),
    "no key": ("offer", "'q', NULL, '1'", "QD001", "^A key has 1 to 200 characters"),
    "an empty key": ("offer", "'q', '', '1'", "QD001", "this one has 0: ''"),
    "a long key": ("offer", "'q', repeat('k', 201), '1'", "QD001", "this one has 201"),
    "no payload": ("offer", "'q', 'k', NULL", "QD002", "cannot encode SQL NULL"),
    "1e400": ("offer", "'q', 'k', '[{\"n\": -1e400}]'", "QD002", "that Python cannot read"),
    "a fraction beyond a double": ("offer", f"'q', 'k', '1{'7' * 400}.5'", "QD002", "cannot read"),
    "4,301 digits": ("offer", f"'q', 'k', '{LONG}'", "QD002", "that Python cannot read"),
    "a number in headers": (
        "offer", f"'q', 'k', '1', headers => '{{\"n\": {LONG}}}'", "QD002", "cannot read",
    ),
    "201 levels": (
        "offer", "'q', 'k', (repeat('[', 202) || repeat(']', 202))::jsonb", "QD002", "200 levels",
    ),
    "deep headers": (
        "offer",
        "'q', 'k', '1', headers => (repeat('{\"a\":', 202) || 1 || repeat('}', 202))::jsonb",
        "QD002", "200 levels",
    ),
    "headers of a list": ("offer", "'q', 'k', '1', headers => '[]'", "QD001", "^headers must map"),
    "large headers": (
        "offer", "'q', 'k', '1', headers => jsonb_build_object('a', repeat('b', 65536))",
        "QD001", "^Headers have at most 65536 characters as JSON; these have 65545",
    ),
    "an empty group": ("offer", "'q', 'k', '1', \"group\" => ''", "QD001", "^A group has 1 to 100"),
    "a long group": ("offer", "'q', 'k', '1', \"group\" => repeat('g', 101)", "QD001", "has 101"),
    "two times": (
        "offer", "'q', 'k', '1', now(), '1 s'", "QD001", "^Give schedule_at or delay, not both",
    ),
    "an infinite time": ("offer", "'q', 'k', '1', 'infinity'", "QD001", "outside the years"),
    "a time too early": ("offer", "'q', 'k', '1', '4000-01-01 BC'", "QD001", "outside the years"),
    "a long delay": (
        "offer", "'q', 'k', '1', delay => '9000 years'", "QD001", "^delay 9000 years leads",
    ),
    "no batch": ("offer_many", "'q', NULL", "QD001", "^A batch is a JSON .*, not NULL"),
    "a batch of one": ("offer_many", "'q', '{}'", "QD001", "^A batch is a JSON array"),
    "a text in a batch": ("offer_many", "'q', '[\"k\"]'", "QD001", "^A message has a text as key"),
    "a number as key": ("offer_many", "'q', '[{\"key\": 1}]'", "QD001", "none: {\"key\": 1}"),
    "a slip": (
        "offer_many", "'q', '[{\"key\": \"a\", \"payload\": 1, \"dealy\": \"1 s\"}]'",
        "QD001", "dealy",
    ),
    "no payload in a batch": ("offer_many", "'q', '[{\"key\": \"a\"}]'", "QD002", "SQL NULL"),
    "a time without a zone": (
        "offer_many", "'q', '[{\"key\": \"a\", \"schedule_at\": \"2040-01-01 10:00\"}]'", "QD001",
        "a time zone",
    ),
    "a date": (
        "offer_many", "'q', '[{\"key\": \"a\", \"schedule_at\": \"2040-01-01\"}]'", "QD001",
        "a time zone",
    ),
    "no delay": (
        "offer_many", "'q', '[{\"key\": \"a\", \"payload\": 1, \"delay\": \"soon\"}]'", "QD001",
        "invalid input syntax for type interval",
    ),
    "no number": ("claim", "'q', NULL", "QD003", "^n must be a number"),
    "no attempts": ("claim", "'q', 1, '1 s', 0", "QD003", "max_attempts at least 1"),
    "no lease": ("claim", "'q', 1, NULL", "QD003", "^The lease duration is NULL"),
    "a lease of zero": ("claim", "'q', 1, '0'", "QD003", "from 1 ms to 3650 days"),
    "a lease of an age": ("claim", "'q', 1, '11 years'", "QD003", "from 1 ms to 3650 days"),
    "an extension of nothing": ("extend", "'lease', NULL", "QD003", "^The lease duration is NULL"),
    "a release in an age": ("release", "'lease', NULL, '9000 years'", "QD001", "leads outside"),
    "a drop of no key": ("drop", "'q', NULL", "QD001", "^A key has"),
    "a read of no queue": ("read", "NULL, 'k'", "QD001", "^A queue needs"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_s6_is_refused_in_the_words_of_python(name: str):
    function, arguments, state, words = REFUSED[name]
    with refused(state, words):
        rows(f"SELECT * FROM delayed_queue_{function}({arguments})")  # noqa: S608


ACCEPTED: Final = {
    "JSON null": "null", "4,300 digits": "9" * 4_300, "a double": "1.7976931348623157e308",
    "a small fraction": "1e-400", "200 levels": "[" * 200 + "]" * 200,
    "control characters": '"\\u0001\\u007f"',
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_s3_what_python_reads_is_accepted(queue: DelayedQueue, name: str):
    assert offer(ACCEPTED[name]) == "created"
    expected = json.loads(ACCEPTED[name], parse_float=Decimal)
    stored = Message.objects.get(key="k")
    assert json.loads(bytes(stored.payload), parse_float=Decimal) == expected


def test_s6_nul_is_refused_by_postgresql_itself():
    with refused("22P05", "unsupported Unicode escape sequence"):
        offer('"a\\u0000b"')


def test_s1_nulls_mean_the_defaults(queue: DelayedQueue):
    more = ", NULL, NULL, NULL, 'null', NULL"
    assert [offer("1", "k", more), offer("2", "k", more)] == ["created", "updated"]
    assert polled(queue).headers == {}
    for function in ("acknowledge", "release", "reject", "extend"):
        assert value(f"SELECT delayed_queue_{function}(NULL)") == 0
    assert Message.objects.count() == 1


def test_s1_a_name_with_quotes_and_semicolons_is_only_a_name():
    name = """x'; DROP TABLE delayed_queue; --"$$%s"""
    assert value("SELECT delayed_queue_offer(%s, %s, '1', \"group\" => %s)", name, name, name)
    assert present(DelayedQueue(name).read(name)).group == name


def test_s2_a_name_with_a_bar_is_the_kind(queue: DelayedQueue):
    assert value("SELECT delayed_queue_offer('polyglot|json', 'k', '1')") == "created"
    assert value("SELECT delayed_queue_drop('polyglot', 'k')") is True
    assert value("SELECT delayed_queue_drop('polyglot', 'k')") is False


# S1: batches


def test_s1_a_batch_ends_as_if_offered_one_by_one(queue: DelayedQueue):
    queue.offer_or_update("c", 1)
    batch = [
        {"key": "b", "payload": 1}, {"key": "a", "payload": None, "delay": "1 hour"},
        {"key": "b", "payload": 2}, {"key": "c", "payload": 2, "can_update": False},
        {"key": "d", "payload": 1, "schedule_at": "2040-01-01T00:00:00+02:00", "group": None},
    ]  # fmt: skip
    found = rows("SELECT * FROM delayed_queue_offer_many('polyglot', %s)", json.dumps(batch))
    assert found == [
        ("b", "created"), ("a", "created"), ("b", "updated"), ("c", "ignored"), ("d", "created"),
    ]  # fmt: skip
    assert present(queue.read("d")).scheduled_at == datetime(2039, 12, 31, 22, tzinfo=UTC)
    assert present(queue.read("b")).payload == 2


def test_s1_a_batch_is_delivered_in_its_order(queue: DelayedQueue):
    batch = json.dumps([{"key": key, "payload": 1} for key in "dbca"])
    rows("SELECT * FROM delayed_queue_offer_many('polyglot', %s)", batch)
    assert [row[1] for row in claim()] == list("dbca")


# S2: claims and dead letters


def test_b7_then_keeps_a_kind_without_a_bar(queue: DelayedQueue):
    shared = DelayedQueue("reports", kind="shared-with-a-jvm")
    with queue.batch(ScheduledMessage("then", 1), then_queue=shared) as batch:
        batch.offer_or_update("a", 1)
    assert value("SELECT delayed_queue_acknowledge(%s)", polled(queue).lease_id) == 1
    assert shared.contains_message("then")


def test_s2_ids_of_null_are_the_whole_lease(queue: DelayedQueue):
    queue.offer_batch([ScheduledMessage(str(n), n) for n in range(5)])
    claimed = claim()
    lease, ids = claimed[0][4], [row[0] for row in claimed]
    assert value("SELECT delayed_queue_acknowledge(%s, %s)", lease, ids[:1]) == 1
    assert value("SELECT delayed_queue_extend(%s, '1 hour')", lease) == 4
    assert value("SELECT delayed_queue_release(%s, %s, '1 hour', 'busy')", lease, ids[1:2]) == 1
    assert value("SELECT delayed_queue_reject(%s, %s)", lease, ids[2:3]) == 1
    assert value("SELECT delayed_queue_release(%s)", lease) == 2
    assert value("SELECT delayed_queue_acknowledge(%s)", lease) == 0
    assert [letter.reason for letter in dead_letters(queue)] == ["rejected"]


def test_s2_what_is_no_json_becomes_a_dead_letter_and_the_next_is_claimed(queue: DelayedQueue):
    raw = DelayedQueue("polyglot", codec="bytes", kind=queue.kind)
    for key, data in {"a": b"\xff", "b": b"{", "c": b'"\\u0000"', "d": b"null"}.items():
        raw.offer_or_update(key, data)
    assert [(row[1], row[2]) for row in claim(2)] == [("d", "null")]
    letters = {each.key: each for each in dead_letters(queue)}
    assert letters.keys() == {"a", "b", "c"}
    assert {each.reason for each in letters.values()} == {"payload not decodable"}
    assert "cannot decode 1 stored bytes: invalid input syntax" in str(letters["b"].last_error)


def test_s2_the_26th_delivery_is_a_dead_letter(queue: DelayedQueue):
    queue.offer_or_update("k", 1)
    Message.objects.update(attempts=24)
    (row,) = claim()
    assert row[3] == 25
    assert value("SELECT delayed_queue_release(%s, error => 'E')", row[4]) == 1
    assert claim() == []
    (letter,) = dead_letters(queue)
    assert (letter.reason, letter.last_error) == ("attempts exhausted", "E")


def test_s2_a_limit_of_zero_or_less_claims_nothing(queue: DelayedQueue):
    queue.offer_or_update("k", 1)
    assert claim(0) == claim(-1) == []
    assert [row[1] for row in claim(1)] == ["k"]


REASONS: Final = [
    ("no stock", None), ("Order 17 of A-18 has 'x y' and \"z\"", None), ("HTTP 500 at 12:30", None),
    ("(a=1; b=2)\n next", "boom at line 7\nmore"), ("don't, it's 5", " \n 'q' 9"),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "error"), REASONS)
def test_s2_a_rejected_message_has_the_fingerprint_of_python(queue, reason, error):
    offer("1")
    value("SELECT delayed_queue_reject(%s, NULL, %s, %s)", claim()[0][4], reason, error)
    assert DeadLetter.objects.get().fingerprint == fingerprint(reason, error)


# S7


def test_s7_pauses_and_limits_hold(queue: DelayedQueue):
    queue.offer_batch([ScheduledMessage(f"a{n}", n, group="a") for n in range(3)])
    queue.pause()
    assert claim() == []
    queue.groups.set(Groups(concurrency=2))
    queue.resume()
    assert len(claim()) == 2
    assert claim() == []


def test_s7_an_older_snapshot_is_refused(transactional_db: None):
    queue = DelayedQueue("polyglot")
    queue.groups.set(Groups(concurrency=1))
    queue.offer_or_update("a", 1, group="a")
    with raw_connection() as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(psycopg.Error, match="Poll outside of it, or at READ COM") as caught:
            other.execute("SELECT * FROM delayed_queue_claim('polyglot')")
    assert caught.value.sqlstate == "QD003"


# S3: notifications


@pytest.mark.parametrize(
    ("statement", "is_heard"),
    [
        ("SELECT delayed_queue_offer('polyglot', 'new', '1')", True),
        ("SELECT delayed_queue_offer('polyglot', 'new', '1', delay => '3 s')", True),
        ("SELECT delayed_queue_offer('polyglot', 'new', '1', delay => '4 s')", False),
        ("SELECT delayed_queue_offer('polyglot', 'old', '1', can_update => false)", False),
        ("SELECT delayed_queue_offer_many('polyglot', '[{\"key\": \"n\", \"payload\": 1}]')", True),
        ("SELECT delayed_queue_release(lease_id) FROM delayed_queue_claim('polyglot')", True),
    ],
)  # fmt: skip
def test_s3_listeners_are_woken_once_as_by_python(transactional_db, statement, is_heard):
    queue = DelayedQueue("polyglot")
    queue.offer_or_update("old", 1)
    channel = channel_of(queue.kind)
    with raw_connection() as listener:
        listener.execute(f"LISTEN {channel}")
        rows(statement)
        rows("SELECT pg_notify(%s, 'end')", channel)
        heard = takewhile(lambda each: each.payload != "end", listener.notifies(timeout=10))
        assert len(list(heard)) == is_heard


@pytest.mark.parametrize("call", ["offer('polyglot', 'k', '2')", "drop('polyglot', 'k')"])
def test_s3_the_holder_of_a_lease_is_told_that_it_ended(transactional_db: None, call: str):
    queue = DelayedQueue("polyglot")
    queue.offer_or_update("k", 1)
    envelope = polled(queue)
    with raw_connection() as listener:
        listener.execute("LISTEN delayed_queue_leases")
        value(f"SELECT delayed_queue_{call}")
        (heard,) = listener.notifies(timeout=5, stop_after=1)
    assert heard.payload == envelope.lease_id
    assert not envelope.acknowledge()
