"""The broker interface (N2): the same JSON gives the same rows and the same errors."""

from __future__ import annotations

import json
import logging
import pickle
import zlib

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from msgspec import to_builtins

from delayed_queue.notifications import intake, services
from delayed_queue.notifications.broker import Consumer
from delayed_queue.notifications.intake import Refused
from delayed_queue.notifications.models import Notification, ParkedRequest
from delayed_queue.notifications.parking import Incoming, retry_parked, take
from tests.notifications.broker.brokers import consume
from tests.notifications.requests import email, sms, template, webhook

COLUMNS = ("channel", "recipient", "recipient_hash", "subject", "body", "priority", "status")
BAD = [
    {},
    7,
    None,
    email(to="ada"),
    sms(to="1"),
    email(channel="fax"),
    email(template="none"),
    email(subject="a\nb"),
    email(colour=1),
    email(expiresAt="2001-01-01T00:00:00Z"),
]


def rows(tenant: str) -> list[tuple[object, ...]]:
    return list(Notification.objects.filter(tenant=tenant).order_by("id").values_list(*COLUMNS))


def test_n2_the_same_json_gives_the_same_rows(each_broker):
    broker = each_broker
    good = [email(), sms(priority="urgent"), webhook(), email(to="bob@example.org")]
    intake.accept(good, tenant="rest")
    broker.send(*good)
    consumer = consume(broker, 4)
    assert (consumer.tally.accepted, consumer.tally.parked) == (4, 0)
    assert rows("upstream") == rows("rest")
    assert services.queue_of("urgent", "sms").stats().due == 2


def test_n2_the_same_json_gives_the_same_errors(broker):
    answers = intake.accept(BAD, tenant="upstream")
    broker.send(*BAD)
    assert consume(broker, len(BAD)).tally.parked == len(BAD)
    parked = {bytes(each.body): each.errors for each in ParkedRequest.objects.all()}
    for raw, answer in zip(BAD, answers, strict=True):
        assert isinstance(answer, Refused)
        assert parked[json.dumps(raw).encode()] == to_builtins(answer.errors)
    assert not Notification.objects.exists()


@pytest.mark.parametrize(
    ("body", "content_type", "reason"),
    [
        (pickle.dumps(email()), "application/x-python-serialize", "content type"),
        (pickle.dumps(email()), "application/json", "malformed"),
        (b"{", "application/json", "malformed"),
        (b'{"channel": NaN}', "application/json", "malformed"),
        (b'{"channel": "a", "channel": "b"}', "application/json", "malformed"),
        (b"[" * 100_000, "application/json", "malformed"),
        (b'{"a": "' + b"x" * 1_700_000 + b'"}', "application/json", "bytes"),
    ],
    ids=["pickle", "disguised", "cut", "nan", "twice", "deep", "large"],
)
def test_n2_what_is_no_json_is_parked_as_it_came(broker, body, content_type, reason):
    broker.send(body, content_type=content_type)
    broker.send(email())
    assert consume(broker, 2).tally.accepted == 1
    parked = ParkedRequest.objects.get()
    assert reason in parked.reason
    assert bytes(parked.body) == body
    assert (parked.origin, parked.content_type) == (broker.queue, content_type)


def test_n2_pickle_is_never_loaded(broker, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (tmp_path.joinpath("run").touch, ())

    for content_type in ("application/x-python-serialize", "application/json"):
        broker.send(pickle.dumps(Bomb()), content_type=content_type)
    consume(broker, 2)
    assert not tmp_path.joinpath("run").exists()
    assert ParkedRequest.objects.count() == 2


def test_n2_nothing_is_decompressed(broker):
    body = zlib.compress(json.dumps(email()).encode())
    broker.send(body, headers={"compression": "application/x-gzip"})
    broker.send(body, headers={"compression": "application/unknown"})
    assert consume(broker, 2).tally.parked == 2
    assert "compressed" in ParkedRequest.objects.get().reason
    assert not Notification.objects.exists()


def test_n2_another_encoding_is_refused(broker):
    broker.send(json.dumps(email()).encode("utf-16"), content_encoding="utf-16")
    consume(broker, 1)
    assert "encoded" in ParkedRequest.objects.get().reason


def test_n2_a_bad_message_does_not_hold_up_the_good_ones(broker):
    mixed = [BAD[each % len(BAD)] if each % 3 else email() for each in range(90)]
    broker.send(*mixed)
    consumer = consume(broker, 90, batch=20)
    assert (consumer.tally.accepted, consumer.tally.parked) == (30, 60)
    assert Notification.objects.count() == 30


def test_n2_the_same_bad_message_is_parked_once_and_counted(broker):
    broker.send(b"{", b"{", b"{")
    consume(broker, 3)
    broker.send(b"{")
    consume(broker, 1)
    assert ParkedRequest.objects.get().times == 4


def test_n2_a_message_delivered_twice_is_one_notification(each_broker):
    broker = each_broker
    broker.send(email(), email(), message_id="m-1")
    broker.send(email(), message_id="m-2")
    broker.send(email(dedupeKey="a"), email(dedupeKey="a"))
    consumer = consume(broker, 5)
    assert (consumer.tally.accepted, consumer.tally.duplicates) == (3, 2)
    assert Notification.objects.count() == 3


def test_n2_long_ids_that_begin_alike_are_two_messages(broker):
    for end in ("1", "2"):
        broker.send(email(), message_id="m" * 220 + end)
    broker.send(email(), message_id="m" * 220 + "2")
    consumer = consume(broker, 3)
    assert (consumer.tally.accepted, consumer.tally.duplicates) == (2, 1)


def test_n2_what_one_tenant_had_parked_is_its_own_when_it_is_accepted(broker):
    """The consumer of another queue, with --tenant; each tenant has its own bytes."""
    raw = json.dumps(email(template="welcome", subject=None, body=None, context={"name": "A"}))
    raws = [Incoming(raw.encode())]
    for tenant in ("bank", "shop"):
        take(raws, tenant=tenant, origin=broker.queue)
    template().save()
    assert all(retry_parked(pk) for pk in ParkedRequest.objects.values_list("pk", flat=True))
    assert sorted(Notification.objects.values_list("tenant", flat=True)) == ["bank", "shop"]


@pytest.mark.parametrize("options", [{"batch": 0}, {"batch": -5}, {"tenant": "x" * 101}])
def test_n2_a_consumer_that_could_take_nothing_does_not_start(options):
    with pytest.raises(ImproperlyConfigured):
        Consumer(url="memory://", **options)


def test_n2_one_that_the_database_refuses_is_parked_and_the_rest_is_stored(broker):
    with connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE delayed_queue_notification "
            "ADD CONSTRAINT unforeseen CHECK (subject <> 'unforeseen')"
        )
    try:
        broker.send(email(), email(subject="unforeseen"), email())
        consumer = consume(broker, 3)
        assert not retry_parked(ParkedRequest.objects.get().pk)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE delayed_queue_notification DROP CONSTRAINT unforeseen")
    assert (consumer.tally.accepted, consumer.tally.parked) == (2, 1)
    assert ParkedRequest.objects.get().reason == "the message cannot be stored: IntegrityError"


def test_n12_no_log_tells_a_recipient(broker, caplog):
    caplog.set_level(logging.DEBUG)
    broker.send(email(), email(to="bob@"), b'{"to": "carol@example.org"')
    consume(broker, 3)
    ours = [each.getMessage() for each in caplog.records if each.name.startswith("delayed_queue")]
    assert any("event=consumed" in each for each in ours)
    for name in ("ada@", "bob@", "carol@"):
        assert name not in "".join(ours)
