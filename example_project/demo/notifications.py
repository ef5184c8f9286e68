"""The act of the notifications: everything at once, and everyone else fails now and then."""

from __future__ import annotations

import json
import logging
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from django.db import transaction
from django.db.models import CharField, Count, Exists, OuterRef
from django.db.models.functions import Cast
from kombu import Connection, Queue
from kombu.exceptions import KombuError

from delayed_queue.http.models import ApiToken
from delayed_queue.http.tokens import create_token
from delayed_queue.models import DeadLetter, Message
from delayed_queue.notifications import models, sweeping
from delayed_queue.notifications.api import TOPIC
from delayed_queue.notifications.broker import Consumer
from delayed_queue.notifications.channels import signing_secrets
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.models import Channel, Delivery, Notification, Status
from delayed_queue.notifications.services import QUEUES
from example_project.demo.checks import Check, Outcome, none_of, repeated, stopped
from example_project.demo.clients import Client, Threads
from example_project.demo.console import DemoError
from example_project.demo.fakes import FakeSmtp, FakeWeb
from example_project.demo.stage import HOST, Act, Child, Stage
from example_project.samples import Sample, read_samples, set_up

# The file's minute, and at least so long for fewer requests.
SECONDS, LEAST_SECONDS, ALL = 24.0, 8.0, 10_000
# How much sooner than in the file what is for later is due, and expires what expires.
HURRY: Final = 2.5
# How long requests are gathered for one call.
GATHER_SECONDS: Final = 0.4
TENANT: Final = "demo-shop"
BROKER_QUEUE: Final = "notifications-demo"
SENT: Final = Status.SUCCESSFULLY_PROCESSED
KINDS: Final = [queue.kind for queue in QUEUES.values()]
DISPATCHERS: Final = 2
# A short lease, so that what the killed one held comes back while one watches.
DISPATCHING: Final = (
    "--async-concurrency", "60", "--poll-interval", "1", "--lease", "5", "--shutdown-timeout", "5",
    "--no-cron", *(part for each in QUEUES for part in ("--queue", models.queue_name(*each))),
)  # fmt: skip
RETRIES: Final = "1s 1s 2s 3s"
# Shares of the time in which requests come: when both SMS providers go down, and for how long the
# second does; and when the first is back.
FIRST_DOWN, SECOND_DOWN, SECOND_DOWN_FOR, FIRST_UP = 0.3, 0.38, 0.06, 0.55
LATENCY, SLOW_LATENCY, SLOW_SECONDS = 0.02, 0.8, 1.5
# A dispatcher is killed that sends so many; after ``SLOW_SECONDS`` a few will do.
MOST_IN_FLIGHT, FEWEST_IN_FLIGHT = 30, 4
_ROWS: Final = (
    ("requests", "{requests:>7,}  by REST and broker, {refused:,} of them refused"),
    ("stored", "{stored:>7,}  the others came for the second time"),
    ("sent", "{sent:>7,}  {mails:,} mails, {texts:,} texts, {webhooks:,} webhooks"),
    ("failed over", "{failed_over:>7,}  texts, sent by the second provider"),
    ("retried", "{retried:>7,}  in more than one attempt"),
    ("not sent", "{failed:>7,}  failed, {expired:,} expired, {cancelled:,} cancelled, "
     "{suppressed:,} suppressed"),
    ("in doubt", "{doubtful:>7,}  lost their answer; {doubtful_sent:,} were asked for again and "
     "sent once"),
    ("took", "{seconds:.0f} s"),
)  # fmt: skip


@dataclass
class NotificationsAct(Act):
    """Ten thousand requests by three ways in, and each is sent once or its end is told."""

    limit: int | None = None

    name = "notifications"
    introduction = "each is sent once, though providers fail and a dispatcher is killed"

    @transaction.atomic
    def clear(self) -> None:
        """Delete the notifications of the demo's tenant, with all that belongs to them."""
        forget(TENANT, KINDS)
        models.ParkedRequest.objects.filter(origin=BROKER_QUEUE).delete()
        ApiToken.objects.filter(name=TENANT).delete()

    def prepare(self, stage: Stage) -> None:
        """Open the third parties, and say in the settings of all processes where they are."""
        set_up()
        self._mail = stage.enter(FakeSmtp(mail_answer, latency=LATENCY))
        self._texts = [stage.enter(FakeWeb(text_answer, latency=LATENCY)) for _ in range(2)]
        self._partners = stage.enter(FakeWeb(partner_answer))
        [self._partners.secret] = signing_secrets()
        for each in (self._mail, *self._texts):
            each.hang_seconds = HANG_SECONDS
        stage.allow_calls(self._partners.port)
        stage.environment |= {
            "NOTIFICATION_PROVIDERS": json.dumps(providers(self._mail, self._texts)),
            "NOTIFICATION_RETRIES": RETRIES,
        }

    def run(self, stage: Stage) -> Outcome:
        began = time.monotonic()
        token = create_token(TENANT, verbs=["add", "read", "delete"], topics=[TOPIC])
        client = Client(stage.web, token)
        dispatchers = stage.start_workers(DISPATCHERS, "dispatcher", *DISPATCHING)
        with stage.threads() as consuming, open_broker(stage) as broker, stage.threads() as clients:
            consuming.start(broker.consumer.run)
            samples = list(islice(read_samples(), self.limit))
            seconds = max(SECONDS * len(samples) / ALL, LEAST_SECONDS)
            traffic = Traffic(samples, seconds, client, broker, self._partners.at(""))
            traffic.start(clients)
            watch = partial(stage.wait, state=_state)
            self._take_down(traffic, watch, stage.console.step)
            self._kill_one(dispatchers, watch, stage)
            watch(lambda: clients.are_done and traffic.is_taken and _is_over())
        witnesses: dict[str, list[Any]] = {
            Channel.EMAIL: [self._mail], Channel.SMS: self._texts, Channel.WEBHOOK: [self._partners]
        }  # fmt: skip
        codes = stage.stop(dispatchers)
        unfinished = Delivery.objects.filter(
            outcome=Delivery.Outcome.UNFINISHED, notification__tenant=TENANT
        ).values_list("notification_id", flat=True)
        found = Evidence(
            traffic, rows_of_table(), parked(), witnesses, self._partners.unsigned,
            unfinished=[str(each) for each in unfinished],
            messages=Message.objects.filter(kind__in=KINDS).count(), exit_codes=codes,
        )  # fmt: skip
        took = {"seconds": time.monotonic() - began}
        return Outcome(figures(found) | took, _ROWS, list(check(found)))

    def _take_down(
        self, traffic: Traffic, watch: Callable[..., None], step: Callable[[str, str], None]
    ) -> None:
        """Have both SMS providers down, one after the other."""
        first, second = self._texts
        watch(lambda: traffic.share >= FIRST_DOWN)
        first.rule = down
        step("outage", "the first SMS provider answers 503; the second takes over")
        # Not before it has taken over, which on a busy machine may take a while.
        watch(lambda: traffic.share >= SECOND_DOWN and bool(second.accepted))
        second.rule, back = down, traffic.share + SECOND_DOWN_FOR
        step("outage", "the second one, too: texts wait, and some expire")
        watch(lambda: traffic.share >= back)
        second.rule = text_answer
        watch(lambda: traffic.share >= FIRST_UP)
        first.rule = text_answer
        step("mended", "both SMS providers are back, the second before the first")

    def _kill_one(self, dispatchers: list[Child], watch: Callable[..., None], stage: Stage) -> None:
        """Have everyone take their time, and kill a dispatcher when much is being sent."""
        servers = (self._mail, *self._texts)
        ours = Notification.objects.filter(tenant=TENANT, status=Status.PROCESSING)
        for each in servers:
            each.latency = SLOW_LATENCY
        fewer_at = time.monotonic() + SLOW_SECONDS
        watch(
            lambda: (
                ours.count()
                >= (MOST_IN_FLIGHT if time.monotonic() < fewer_at else FEWEST_IN_FLIGHT)
            )
        )
        successor = stage.replace(dispatchers[0], *DISPATCHING)
        for each in servers:
            each.latency = LATENCY
        said = f"dispatcher {dispatchers[0].pid} by SIGKILL; {successor.pid} takes its place"
        dispatchers.append(successor)
        stage.console.step("kill", said)


def forget(tenant: str, kinds: Sequence[str]) -> None:
    """Delete the notifications of this tenant, and what is in the queues for them."""
    ours = Notification.objects.filter(tenant=tenant)
    keys = ours.annotate(key=Cast("pk", CharField())).values("key")
    for rows in (
        Message.objects.filter(kind__in=kinds, key__in=keys),
        DeadLetter.objects.filter(kind__in=kinds, key__in=keys),
        Delivery.objects.filter(notification__tenant=tenant),
        ours,
        models.DedupeClaim.objects.filter(tenant=tenant),
    ):
        rows.delete()


def _statuses() -> Counter[str]:
    """Return how many of our notifications are in each state."""
    ours = Notification.objects.filter(tenant=TENANT).order_by()
    return Counter(dict(ours.values_list("status").annotate(Count("pk"))))


def _state() -> str:
    # What the schedule ``notifications-sweeps`` does once a minute: it ends those whose attempts
    # were used up when their dispatcher was killed.
    sweeping.expire_overdue()
    sweeping.fail_dead()
    counts = _statuses()
    waiting = sum(counts[status] for status in models.OPEN_STATUSES)
    sent = counts[SENT]
    rest = counts.total() - waiting - sent
    return f"{counts.total():,} stored: {waiting:,} wait, {sent:,} sent, {rest:,} not to be sent"


def _is_over() -> bool:
    is_left = Message.objects.filter(kind__in=KINDS).exists()
    return not is_left and not any(_statuses()[each] for each in models.OPEN_STATUSES)


# What is asked for, by whom, and when


class Answer(NamedTuple):
    """The answer to a request: the id of its notification, or its errors."""

    number: int
    id: str = ""
    reason: str = ""


def way_of(sample: Sample) -> str:
    """Codes come one by one, as somebody waits for each; what is no JSON fits no bulk."""
    if sample.via == "broker":
        return "broker"
    return "single" if sample.kind == "code" or "text" in sample.line else "bulk"


class Traffic:
    """Requests, each sent at its time: the file's minute takes ``seconds``; and all answers."""

    def __init__(
        self, samples: Sequence[Sample], seconds: float, client: Client, broker: Broker,
        webhooks: str = "",
    ) -> None:  # fmt: skip
        self.samples, self._seconds = samples, seconds
        self._client, self._broker, self._webhooks = client, broker, webhooks
        self.began_at = time.time()
        self.answers: list[Answer] = []
        self.published = 0
        self.cancelled: list[str] = []
        # Answers that a service must never get.
        self.surprises: list[str] = []

    def start(self, threads: Threads) -> None:
        """Start a client for each way in, and three where each request waits for its answer."""
        for way, clients, most, send in (
            ("single", 3, 1, self._post),
            ("broker", 1, 1, self._publish),
            ("bulk", 1, 500, self._post_bulk),
        ):
            chosen = [each for each in self.samples if way_of(each) == way]
            for start in range(clients):
                threads.play(send, self._batches(chosen[start::clients], most))

    @property
    def share(self) -> float:
        """How much of the time in which requests come is over."""
        return (time.time() - self.began_at) / self._seconds

    @property
    def is_taken(self) -> bool:
        """Whether the consumer has stored or parked all that was published."""
        return bool(sum(astuple(self._broker.consumer.tally)) == self.published)

    def due_at(self, sample: Sample) -> float:
        return self.began_at + sample.after / self.samples[-1].after * self._seconds

    def _batches(self, samples: list[Sample], most: int) -> Iterator[tuple[float, list[Sample]]]:
        """Yield the requests with their time, together those that come within a moment."""
        while samples:
            end = self.due_at(samples[0]) + GATHER_SECONDS
            batch = [each for each in samples[:most] if self.due_at(each) <= end]
            samples = samples[len(batch) :]
            yield self.due_at(batch[-1]), batch

    def _body(self, sample: Sample) -> bytes:
        return sample.body(datetime.now(UTC), self._webhooks, HURRY)

    def _publish(self, batch: list[Sample]) -> None:
        self._broker.publish(self._body(batch[0]), message_id=f"demo-{batch[0].number}")
        self.published += 1

    def _post(self, batch: list[Sample]) -> None:
        body = self._body(batch[0])
        self.note(batch[0], *self._client.call("POST", "/v1/notifications", body))

    def _post_bulk(self, batch: list[Sample]) -> None:
        lines = b"\n".join(map(self._body, batch))
        path, kind = "/v1/notifications/bulk", "application/x-ndjson"
        status, answer = self._client.call("POST", path, lines, kind)
        items = answer.get("items", []) if status == 202 else []
        if len(items) != len(batch):
            self.surprises.append(f"{status} to a bulk of {len(batch)}")
        for each, item in zip(batch, items, strict=False):
            self.note(each, 400 if "errors" in item else 202, item)
            if each.kind == "reminder" and each.number % 10 == 0 and "id" in item:
                self._cancel(item["id"])

    def _cancel(self, id_: str) -> None:
        status, _ = self._client.call("DELETE", f"/v1/notifications/{id_}")
        if status == 204:
            self.cancelled.append(id_)
        elif status != 409:  # it is being sent, or was
            self.surprises.append(f"{status} to DELETE")

    def note(self, sample: Sample, status: int, answer: dict[str, Any]) -> None:
        if status not in (202, 400):
            self.surprises.append(f"{status} to request {sample.number + 1}")
        errors = answer.get("errors") or [{"message": str(answer.get("code", status))}]
        id_ = answer["id"] if status == 202 else ""
        self.answers.append(Answer(sample.number, id_, "" if id_ else reason_of(errors)))


def reason_of(errors: Sequence[dict[str, str]]) -> str:
    """Return what was wrong: all ways in say it alike."""
    return "; ".join(f"{each.get('path') or 'request'}: {each.get('message')}" for each in errors)


class Broker(NamedTuple):
    """What puts messages into the broker's queue, for one thread; and the service's consumer."""

    publish: Callable[..., Any]
    consumer: Consumer


@contextmanager
def open_broker(stage: Stage) -> Iterator[Broker]:
    """Give the RabbitMQ that AMQP_URL names, or else a queue in memory; delete the queue after."""
    url = get_settings().BROKER_URL
    in_memory = url == "memory://"
    stage.console.step("broker", "in memory, no AMQP_URL" if in_memory else "RabbitMQ")
    options = {} if in_memory else {"confirm_publish": True}
    with Connection(url, transport_options=options, connect_timeout=5) as connection:
        try:
            queue = Queue(BROKER_QUEUE, durable=True)(connection.default_channel)
            queue.declare()
            queue.purge()
        except (OSError, KombuError) as error:
            raise DemoError(f"The broker of AMQP_URL: {type(error).__name__}") from error
        publish = partial(
            connection.Producer(auto_declare=False).publish, routing_key=BROKER_QUEUE,
            delivery_mode=2, content_type="application/json", content_encoding="utf-8",
        )  # fmt: skip
        consumer = Consumer(url=url, queue=BROKER_QUEUE, tenant=TENANT)
        logging.disable(logging.INFO)  # its lines would come between those of the demo
        try:
            yield Broker(publish, consumer)
        finally:
            consumer.stop()
            logging.disable(logging.NOTSET)
            with suppress(OSError, KombuError):
                queue.delete()


# When third parties fail: by what they are sent, so that each run has the same faults

# How long the dispatchers wait for an answer, and how long one who hangs gives none.
TIMEOUT_SECONDS, HANG_SECONDS = 2.0, 4.0
# Of so many addresses, or numbers, one has this fault.
_MAIL: Final = {"450": 25, "drop": 400, "hang": 600, "drop-after": 250}
_TEXTS: Final = {"503 0": 20, "429 0": 40, "drop": 60, "drop-after": 30, "hang-after": 200}
_BLOCKED: Final = {"blocked": 90}
# Of the twenty partners; the one that is down never answers anything else.
_PARTNERS: Final = {"/3": "503", "/7": "500", "/11": "drop-after", "/16": "410"}
_DOWN_PARTNER: Final = "/13"


def _fault_of(text: str, shares: dict[str, int]) -> str:
    """Return the fault of a recipient, mostly none."""
    number = zlib.crc32(text.encode())
    for fault, share in shares.items():
        number, rest = divmod(number, share)
        if rest == 0:
            return fault
    return ""


def mail_answer(address: str, times: int) -> str:
    """Refuse unknown addresses, greylist some, and hang up before or after a body."""
    if address.startswith("nobody-"):
        return "550"
    fault = _fault_of(address, _MAIL)
    return fault if times == 1 or fault.endswith("-after") else ""


def text_answer(asked: Any, times: int) -> str:
    """Fail once for some numbers, block a few for good."""
    number = asked["to"]
    return _fault_of(number, _BLOCKED) or (_fault_of(number, _TEXTS) if times == 1 else "")


def partner_answer(asked: Any, times: int) -> str:
    """Some stumble once, one is gone, one is down."""
    partner = asked["path"].removeprefix("/partners")
    if partner == _DOWN_PARTNER:
        return "503"
    return _PARTNERS.get(partner, "") if times == 1 else ""


def down(asked: Any, times: int) -> str:
    return "503 0"


def providers(mail: FakeSmtp, texts: Sequence[FakeWeb]) -> dict[str, list[dict[str, Any]]]:
    """Return the setting NOTIFICATION_PROVIDERS that leads to them."""
    email = {
        "kind": "email", "name": "mail", "sender": "Shop <shop@example.org>",
        "host": HOST, "port": mail.port, "threads": 30, "timeout": TIMEOUT_SECONDS,
    }  # fmt: skip
    sms = {
        "kind": "http", "idempotency_header": "Idempotency-Key", "timeout": TIMEOUT_SECONDS,
        "codes": {"blocked": "permanent"},
    }  # fmt: skip
    first, second = (server.at("/messages") for server in texts)
    return {
        "email": [email],
        "sms": [{**sms, "name": "sms-first", "url": first},
                {**sms, "name": "sms-second", "url": second}],
        "webhook": [{"kind": "webhook", "name": "partners"}],
    }  # fmt: skip


# What everybody saw: those who asked, the table, and the strangers at the other end


def rows_of_table() -> dict[str, Any]:
    """Return our notifications by id; ``is_doubtful`` are those of which an answer was lost."""
    lost = (Delivery.Outcome.AMBIGUOUS, Delivery.Outcome.UNFINISHED)
    calls = Delivery.objects.filter(notification=OuterRef("pk"), outcome__in=lost)
    ours = Notification.objects.filter(tenant=TENANT)
    return {str(each.pk): each for each in ours.annotate(is_doubtful=Exists(calls))}


def parked() -> list[Answer]:
    """Return a broker's messages that were parked, as often as they were."""
    rows = models.ParkedRequest.objects.filter(origin=BROKER_QUEUE)
    return [
        Answer(number_of(each.message_id), reason=reason_of(each.errors))
        for each in rows
        for _ in range(each.times)
    ]


def number_of(message_id: str) -> int:
    """Return the number of the sample that was published under this id; -1 if none was."""
    number = message_id.removeprefix("demo-")
    return int(number) if number.isdecimal() else -1


@dataclass(slots=True)
class Evidence:
    """All of it, gathered when everything had come to its end."""

    traffic: Traffic
    rows: Mapping[str, Any]
    parked: Sequence[Answer]
    # By channel the servers, with what they accepted and when it came.
    witnesses: Mapping[str, Sequence[Any]]
    unsigned: int
    # What the killed dispatcher had begun to send.
    unfinished: Sequence[str]
    messages: int
    exit_codes: Sequence[int]

    @property
    def refused(self) -> list[Answer]:
        """Everything that was refused, by whichever way it had come."""
        return [*(each for each in self.traffic.answers if not each.id), *self.parked]

    @property
    def sent(self) -> set[tuple[str, str]]:
        """Channel and id of what the table calls sent."""
        return {(row.channel, id_) for id_, row in self.rows.items() if row.status == SENT}

    @property
    def in_doubt(self) -> set[tuple[str, str]]:
        return {(row.channel, id_) for id_, row in self.rows.items() if row.is_doubtful}

    def seen(self) -> Iterator[tuple[str, str, float]]:
        """Yield channel, id and when for all that strangers accepted, as often."""
        for channel, servers in self.witnesses.items():
            for each in servers:
                for id_ in Counter(each.accepted).elements():
                    yield channel, id_, each.began_at.get(id_, 0.0)

    def is_final(self, id_: str) -> bool:
        return id_ in self.rows and self.rows[id_].status in models.FINAL_STATUSES


def figures(found: Evidence) -> dict[str, Any]:
    """Count what came of the requests."""
    rows = list(found.rows.values())
    sent = Counter(channel for channel, _ in found.sent)
    status = Counter(row.status for row in rows)
    suppressed = sum(row.outcome == "suppressed" for row in rows)
    second = sum(row.status == SENT and row.provider == "sms-second" for row in rows)
    return {
        "requests": len(found.traffic.samples), "refused": len(found.refused),
        "stored": len(rows), "sent": sent.total(), "mails": sent[Channel.EMAIL],
        "texts": sent[Channel.SMS], "webhooks": sent[Channel.WEBHOOK], "failed_over": second,
        "retried": sum(row.attempts > 1 for row in rows), "failed": status[Status.FAILED],
        "expired": status[Status.EXPIRED], "suppressed": suppressed,
        "cancelled": status[Status.CANCELLED] - suppressed,
        "doubtful": len(found.in_doubt), "doubtful_sent": len(found.in_doubt & found.sent),
    }  # fmt: skip


# What must hold

# What a stranger sees a moment after the dispatcher looked at its clock.
TRAVEL_SECONDS: Final = 0.5
TOO_LATE: Final = "expiresAt: is in the past"


def check(found: Evidence) -> Iterator[Check]:
    """Yield every check; the run is good if all have passed."""
    yield from _of_intake(found)
    yield from _of_sending(found)
    ended = [id_ for id_ in found.unfinished if found.is_final(id_)]
    said = f"{len(ended)} of {len(found.unfinished)} sends that it had in flight have ended"
    yield Check("killed dispatcher", len(ended) == len(found.unfinished) > 0, said)
    yield Check("queues empty", not found.messages, f"{found.messages} messages are left in them")
    yield stopped(found.exit_codes)


def _of_intake(found: Evidence) -> Iterator[Check]:
    traffic, samples = found.traffic, {each.number: each for each in found.traffic.samples}
    wrong = {number for number, each in samples.items() if each.kind == "wrong"}
    refused = {each.number for each in found.refused}
    too_late = {each.number for each in found.refused if each.reason == TOO_LATE}
    # A code may have expired when its request arrived.
    late = {number for number in too_late if samples[number].kind == "code"}
    said = f"{len(wrong):,} of the file are wrong, {len(refused):,} were refused"
    yield none_of("wrong, accepted", wrong - refused, said)
    said = f"{len(late)} more had expired on the way" if late else "all others were accepted"
    yield none_of("right, refused", refused - wrong - late, said)
    numbers = [each.number for each in found.parked]
    said = f"{len(numbers):,} of {traffic.published:,} published, each once"
    yield none_of("parked twice", repeated(numbers), said, and_also=traffic.is_taken)
    yield none_of("odd answers", traffic.surprises, "nothing but 202 and 400")
    different = {
        each.line.get("request", {}).get("dedupeKey") or number
        for number, each in samples.items()
        if number not in refused
    }
    said = f"{len(found.rows):,} stored, {len(different):,} different ones accepted"
    yield Check("stored once", len(found.rows) == len(different), said)


def _of_sending(found: Evidence) -> Iterator[Check]:
    rows, seen, cancelled = found.rows, list(found.seen()), found.traffic.cancelled
    promised = {each.id for each in found.traffic.answers if each.id} | rows.keys()
    lost = [id_ for id_ in promised if not found.is_final(id_)]
    yield none_of("lost", lost, f"{len(promised):,} accepted, each has come to an end")
    twice, received = repeated(id_ for _, id_, _ in seen), {id_ for _, id_, _ in seen}
    said = f"though of {len(found.in_doubt)} one could not know whether they were"
    yield none_of("sent twice", twice, said)
    arrived, sent = {(channel, id_) for channel, id_, _ in seen}, found.sent
    unseen = [id_ for _, id_ in sent - arrived]
    yield none_of("sent, not seen", unseen, f"{len(sent):,} sent, each was received")
    in_doubt = found.in_doubt - sent
    unsaid = [id_ for _, id_ in arrived - sent - in_doubt]
    said = f"{len(received):,} received: sent, or {len(arrived & in_doubt)} recorded as in doubt"
    yield none_of("seen, not sent", unsaid, said)
    late = {id_ for _, id_, at in seen if id_ in rows and _is_late(rows[id_], at)}
    yield none_of("sent late", late, "nothing arrived after its expiresAt")
    unwanted = received & set(cancelled)
    yield none_of("cancelled, sent", unwanted, f"{len(cancelled)} were cancelled with DELETE")
    yield Check("unsigned 0", not found.unsigned, "every webhook had a valid signature")


def _is_late(row: Any, began_at: float) -> bool:
    return row.expires_at is not None and began_at > row.expires_at.timestamp() + TRAVEL_SECONDS
