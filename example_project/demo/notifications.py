"""The act of the notifications: many channels at once, with providers that fail."""

from __future__ import annotations

import json
import logging
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from django.db.models import CharField, Count, Exists, OuterRef, QuerySet
from django.db.models.functions import Cast
from kombu import Connection, Producer, Queue
from kombu.exceptions import KombuError

from delayed_queue.http.models import ApiToken
from delayed_queue.http.tokens import create_token
from delayed_queue.models import Message
from delayed_queue.notifications import managing, models, sweeping
from delayed_queue.notifications.api import TOPIC
from delayed_queue.notifications.broker import Consumer
from delayed_queue.notifications.channels import signing_secrets
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.events import Kind
from delayed_queue.notifications.models import Channel, Delivery, Notification, Reception, Status
from delayed_queue.notifications.services import dispatch_queues
from example_project.demo.clients import Client, Threads
from example_project.demo.report import Check, DemoError, Outcome, Row, none_of, repeated
from example_project.demo.stage import HOST, Act, Stage, messages_of
from example_project.events import signed
from example_project.fakes import FakeSmtp, FakeWeb
from example_project.samples import Sample, read_samples, set_up

# Seconds of play for all requests of the file; the minimum for fewer.
SECONDS, LEAST_SECONDS, ALL = 24.0, 8.0, 10_000
# Factor by which sendAt and expiresAt come sooner than in the file.
HURRY: Final = 2.5
# Window in which requests are gathered for one bulk call.
GATHER_SECONDS: Final = 0.4
TENANT: Final = "demo-shop"
BROKER_QUEUE: Final = "notifications-demo"
SENT: Final = Status.SUCCESSFULLY_PROCESSED
KINDS: Final = [queue.kind for queue in dispatch_queues().values()]
DISPATCHERS: Final = 2
# A short lease, so that messages of the killed ones are redelivered during the demo.
DISPATCHING: Final = (
    "--async-concurrency", "60", "--poll-interval", "1", "--lease", "5", "--shutdown-timeout", "5",
    "--no-cron",
    *(part for each in dispatch_queues() for part in ("--queue", models.queue_name(*each))),
)  # fmt: skip
RETRIES: Final = "1s 1s 2s 3s"
LATENCY, SLOW_LATENCY = 0.02, 0.8
# Sends in flight at the kill; fewer in a run of few requests.
MOST_IN_FLIGHT: Final = 20


@dataclass
class NotificationsAct(Act):
    """Ten thousand requests by REST, bulk and broker; each is sent once or ends otherwise."""

    limit: int | None = None

    name = "notifications"
    introduction = "each is sent once, while providers fail and dispatchers are killed"

    def leftovers(self) -> Iterator[QuerySet[Any]]:
        yield from leftovers_of(TENANT, KINDS)
        yield models.ParkedRequest.objects.filter(origin=BROKER_QUEUE)
        yield ApiToken.objects.filter(name=TENANT)

    def prepare(self, stage: Stage) -> None:
        """Start the simulated third parties, and pass their addresses to all processes."""
        set_up()
        self._mail = stage.enter(FakeSmtp(mail_answer, latency=LATENCY))
        self._texts = [stage.enter(FakeWeb(text_answer, latency=LATENCY)) for _ in range(2)]
        self._partners = stage.enter(FakeWeb(partner_answer))
        [self._partners.secret] = signing_secrets()
        for each in (self._mail, *self._texts):
            each.hang_seconds = HANG_SECONDS
        stage.ports.append(self._partners.port)
        stage.environment |= {
            "NOTIFICATION_PROVIDERS": json.dumps(providers(self._mail, self._texts)),
            "NOTIFICATION_RETRIES": RETRIES,
            "NOTIFICATIONS_URL": "http://localhost/v1",
        }

    def run(self, stage: Stage) -> Outcome:
        token = create_token(TENANT, verbs=["add", "read", "delete"], topics=[TOPIC])
        client = Client(stage.web, token)
        dispatchers = stage.start_workers(DISPATCHERS, "dispatcher", *DISPATCHING)
        samples = list(islice(read_samples(), self.limit))
        with (
            stage.threads() as consuming,
            open_broker(stage) as (producer, consumer),
            stage.threads() as clients,
        ):
            consuming.start(consumer.run)
            traffic = Traffic(samples, client, producer, consumer, self._partners.at(""))
            traffic.start(clients)
            self._take_down(traffic, stage)
            # All providers slow down, so that many sends are in flight.
            self._have_latency(SLOW_LATENCY)
            enough = min(MOST_IN_FLIGHT, len(samples) // 40)
            stage.wait(lambda: _statuses()[Status.PROCESSING] >= enough, _state)
            # All of them, because one alone may have no send in flight.
            dispatchers = [stage.kill(each, *DISPATCHING) for each in dispatchers]
            self._have_latency(LATENCY)
            stage.wait(lambda: clients.are_done and traffic.is_taken and _is_over(), _state)
        stage.stop(dispatchers)
        witnesses: dict[str, list[Any]] = {
            Channel.EMAIL: [self._mail], Channel.SMS: self._texts, Channel.WEBHOOK: [self._partners]
        }  # fmt: skip
        seen = [
            (channel, id_, server.began_at[id_])
            for channel, servers in witnesses.items()
            for server in servers
            for id_ in server.accepted.elements()
        ]
        left = Message.objects.filter(kind__in=KINDS).count()
        found = Evidence(
            traffic, rows_of_table(), parked(), seen, self._partners.unsigned, left, stage.lag
        )
        checks = [*check(found), *say_no(stage.web, self._mail.links)]
        return Outcome(report(found), checks)

    def _take_down(self, traffic: Traffic, stage: Stage) -> None:
        """Apply the outages of the SMS providers at their times."""
        for share, rules, name, said in OUTAGES:
            stage.wait(partial(traffic.has_passed, share), _state)
            for server, rule in zip(self._texts, rules, strict=True):
                server.rule = rule
            stage.console.step(name, said)

    def _have_latency(self, seconds: float) -> None:
        for each in (self._mail, *self._texts):
            each.latency = seconds


def say_no(address: str, links: Mapping[str, str]) -> Iterator[Check]:
    """Click the link of one mail, and report another as bounced; then lift both suppressions."""
    clicked, bounced = Notification.objects.in_bulk(list(links)[:2]).values()
    path = urlsplit(links[str(clicked.pk)]).path
    post(address + path)
    opted_out = managing.lift(Channel.EMAIL, clicked.recipient, clicked.category)
    yield Check("unsubscribed", opted_out, "one click on the link in a mail", "RFC 8058")
    post(f"{address}/v1/events/demo", signed(Kind.BOUNCED, f"<{bounced.pk}@example.org>"))
    bounced.refresh_from_db()
    is_known = bounced.delivery == Reception.BOUNCED
    suppressed = managing.lift(Channel.EMAIL, bounced.recipient)
    yield Check("bounced", is_known and suppressed, "the address gets no more mail", "events")


def post(url: str, body: bytes = b"") -> None:
    """POST without a token, a cookie or a session."""
    with urlopen(Request(url, body, method="POST"), timeout=20) as response:  # noqa: S310 - ours
        response.read()


def leftovers_of(tenant: str, kinds: Sequence[str]) -> Iterator[QuerySet[Any]]:
    """Yield the notifications of this tenant, and their messages."""
    ours = Notification.objects.filter(tenant=tenant)
    keys = ours.annotate(key=Cast("pk", CharField())).values("key")
    for messages in messages_of(*kinds):
        yield messages.filter(key__in=keys)
    yield Delivery.objects.filter(notification__tenant=tenant)
    yield ours
    yield models.DedupeClaim.objects.filter(tenant=tenant)


def _statuses() -> Counter[str]:
    """Return the number of our notifications in each state."""
    ours = Notification.objects.filter(tenant=TENANT).order_by()
    return Counter(dict(ours.values_list("status").annotate(Count("pk"))))


def _state() -> str:
    # The schedule ``notifications-sweeps`` does this once a minute.
    sweeping.expire_overdue()
    counts = _statuses()
    waiting = sum(counts[status] for status in models.OPEN_STATUSES)
    sent = counts[SENT]
    rest = counts.total() - waiting - sent
    return f"{counts.total():,} stored: {waiting:,} open, {sent:,} sent, {rest:,} ended unsent"


def _is_over() -> bool:
    is_left = Message.objects.filter(kind__in=KINDS).exists()
    return not is_left and not any(_statuses()[each] for each in models.OPEN_STATUSES)


# The requests and their times


def way_of(sample: Sample) -> str:
    """Return the intake: codes and invalid JSON one by one, others in bulk or by the broker."""
    if sample.via == "broker":
        return "broker"
    return "single" if sample.kind == "code" or "text" in sample.line else "bulk"


@dataclass
class Traffic:
    """Requests, each sent at its time, and all replies."""

    samples: Sequence[Sample]
    client: Client
    producer: Producer
    consumer: Consumer
    webhooks: str = ""
    began_at: float = field(default_factory=time.time)
    # By the number of the request: the id of its notification, or its errors.
    accepted: dict[int, str] = field(default_factory=dict)
    refused: dict[int, Any] = field(default_factory=dict)
    published: int = 0
    cancelled: list[str] = field(default_factory=list)
    # Replies that must never come.
    surprises: list[str] = field(default_factory=list)

    def start(self, threads: Threads) -> None:
        """Start one client for each intake, and three for single requests."""
        for way, clients, most, send in (
            ("single", 3, 1, self._post),
            ("broker", 1, 1, self._publish),
            ("bulk", 1, 500, self._post_bulk),
        ):
            chosen = [each for each in self.samples if way_of(each) == way]
            threads.play(send, list(self._batches(chosen, most)), clients)

    @property
    def seconds(self) -> float:
        """Seconds in which the requests of the file are played."""
        return max(SECONDS * len(self.samples) / ALL, LEAST_SECONDS)

    def has_passed(self, share: float) -> bool:
        """Return True if this share of the time for requests has passed."""
        return time.time() >= self.began_at + share * self.seconds

    @property
    def is_taken(self) -> bool:
        """True when the consumer has stored or parked all published requests."""
        return bool(sum(tuple(self.consumer.tally)) == self.published)

    def due_at(self, sample: Sample) -> float:
        return self.began_at + sample.after / self.samples[-1].after * self.seconds

    def _batches(self, samples: list[Sample], most: int) -> Iterator[tuple[float, list[Sample]]]:
        """Yield batches of requests that come within the gathering window, with their time."""
        while samples:
            end = self.due_at(samples[0]) + GATHER_SECONDS
            batch = [each for each in samples[:most] if self.due_at(each) <= end]
            samples = samples[len(batch) :]
            yield self.due_at(batch[-1]), batch

    def _body(self, sample: Sample) -> bytes:
        return sample.body(datetime.now(UTC), self.webhooks, HURRY)

    def _publish(self, batch: list[Sample]) -> None:
        self.producer.publish(
            self._body(batch[0]), message_id=str(batch[0].number), delivery_mode=2,
            content_type="application/json", content_encoding="utf-8",
        )  # fmt: skip
        self.published += 1

    def _post(self, batch: list[Sample]) -> None:
        body = self._body(batch[0])
        self.note(batch[0], *self.client.call("POST", "/v1/notifications", body))

    def _post_bulk(self, batch: list[Sample]) -> None:
        lines = b"\n".join(map(self._body, batch))
        path, kind = "/v1/notifications/bulk", "application/x-ndjson"
        status, answer = self.client.call("POST", path, lines, kind)
        items = answer.get("items", []) if status == 202 else []
        if len(items) != len(batch):
            self.surprises.append(f"{status} to a bulk of {len(batch)}")
        for each, item in zip(batch, items, strict=False):
            self.note(each, 400 if "errors" in item else 202, item)
            if each.kind == "reminder" and each.number % 10 == 0 and "id" in item:
                self._cancel(item["id"])

    def _cancel(self, id_: str) -> None:
        status, _ = self.client.call("DELETE", f"/v1/notifications/{id_}")
        if status == 204:
            self.cancelled.append(id_)
        elif status != 409:  # it is in flight or was sent
            self.surprises.append(f"{status} to DELETE")

    def note(self, sample: Sample, status: int, answer: dict[str, Any]) -> None:
        if status == 202:
            self.accepted[sample.number] = answer["id"]
            return
        self.refused[sample.number] = answer.get("errors")
        if status != 400:
            self.surprises.append(f"{status} to request {sample.number + 1}")


@contextmanager
def open_broker(stage: Stage) -> Iterator[tuple[Producer, Consumer]]:
    """Open the RabbitMQ of AMQP_URL, or a queue in memory; delete the queue afterwards."""
    url = get_settings().BROKER_URL
    stage.console.step(
        "broker", "RabbitMQ" if url.startswith("amqp") else "in memory, without AMQP_URL"
    )
    options = {"confirm_publish": True} if url.startswith("amqp") else {}
    consumer = Consumer(url=url, queue=BROKER_QUEUE, tenant=TENANT)
    logging.disable(logging.INFO)  # its lines would mix with those of the demo
    try:
        with Connection(url, transport_options=options, connect_timeout=5) as connection:
            queue = Queue(BROKER_QUEUE, durable=True)(connection.default_channel)
            queue.declare()
            queue.purge()
            yield connection.Producer(auto_declare=False, routing_key=BROKER_QUEUE), consumer
            consumer.stop()
            queue.delete()
    except (OSError, KombuError) as error:
        raise DemoError(f"The broker of AMQP_URL: {type(error).__name__}") from error
    finally:
        consumer.stop()
        logging.disable(logging.NOTSET)


# Faults of third parties: they depend on the recipient, so each run has the same

# The timeout of a dispatcher, and the delay of a server that hangs.
TIMEOUT_SECONDS, HANG_SECONDS = 2.0, 4.0
# One in N addresses, or numbers, has this fault.
_MAIL: Final = {"450": 25, "drop": 400, "hang": 600, "drop-after": 250}
_TEXTS: Final = {"503 0": 20, "429 0": 40, "drop": 60, "drop-after": 30, "hang-after": 200}
# First reply of some of the twenty partners; the one that is down never recovers.
_PARTNERS: Final = {"/3": "503", "/7": "500", "/11": "drop-after", "/13": "503", "/16": "410"}
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
    """Refuse unknown addresses, greylist some, hang up before or after a body."""
    if address.startswith("nobody-"):
        return "550"
    fault = _fault_of(address, _MAIL)
    return fault if times == 1 or fault.endswith("-after") else ""


def text_answer(asked: Any, times: int) -> str:
    """Fail once for some numbers, block a few for good."""
    number = asked["to"]
    return _fault_of(number, {"blocked": 90}) or (_fault_of(number, _TEXTS) if times == 1 else "")


def partner_answer(asked: Any, times: int) -> str:
    """Fail once for some partners; one is gone, one stays down."""
    partner = asked["path"].removeprefix("/partners")
    return _PARTNERS.get(partner, "") if times == 1 or partner == _DOWN_PARTNER else ""


def _down(asked: Any, times: int) -> str:
    return "503 0"


# Shares of the time at which the two SMS providers change their replies.
OUTAGES: Final = (
    (0.3, (_down, text_answer), "outage",
     "the first SMS provider replies 503; the second takes over"),
    (0.38, (_down, _down), "outage", "the second replies 503, too: texts wait, some expire"),
    (0.44, (_down, text_answer), "repaired", "the second SMS provider is back"),
    (0.55, (text_answer, text_answer), "repaired", "the first SMS provider is back"),
)  # fmt: skip


def providers(mail: FakeSmtp, texts: Sequence[FakeWeb]) -> dict[str, list[dict[str, Any]]]:
    """Return the setting NOTIFICATION_PROVIDERS that leads to them."""
    email = {
        "kind": "email", "name": "mail", "sender": "Shop <shop@example.org>",
        "host": HOST, "port": mail.port, "threads": 30, "timeout": TIMEOUT_SECONDS,
    }  # fmt: skip
    sms = [
        {
            "kind": "http", "name": name, "url": server.at("/messages"),
            "idempotency_header": "Idempotency-Key", "timeout": TIMEOUT_SECONDS,
            "codes": {"blocked": "permanent"},
        }
        for name, server in zip(("sms-first", "sms-second"), texts, strict=True)
    ]  # fmt: skip
    return {"email": [email], "sms": sms, "webhook": [{"kind": "webhook", "name": "partners"}]}


# The evidence: replies, the table, and the records of the third parties


def rows_of_table() -> dict[str, Any]:
    """Return our notifications by id, with lost replies and interrupted sends marked."""
    calls = Delivery.objects.filter(notification=OuterRef("pk"))
    interrupted = calls.filter(outcome=Delivery.Outcome.UNFINISHED)
    lost = interrupted | calls.filter(outcome=Delivery.Outcome.AMBIGUOUS)
    ours = Notification.objects.filter(tenant=TENANT)
    rows = ours.annotate(is_doubtful=Exists(lost), was_interrupted=Exists(interrupted))
    return {str(each.pk): each for each in rows}


def parked() -> list[tuple[int, Any]]:
    """Return number and errors of each parked message of the broker, with repetitions."""
    rows = models.ParkedRequest.objects.filter(origin=BROKER_QUEUE)
    return [(int(each.message_id), each.errors) for each in rows for _ in range(each.times)]


@dataclass(slots=True)
class Evidence:
    """All records of a finished run."""

    traffic: Traffic
    rows: dict[str, Any]
    parked: Sequence[tuple[int, Any]]
    # Every acceptance by a third party: channel, id, time.
    arrivals: Sequence[tuple[str, str, float]]
    unsigned: int
    messages: int
    # Delay of the machine under load, in seconds.
    lag: float = 0.0

    def is_final(self, id_: str) -> bool:
        return id_ in self.rows and self.rows[id_].status in models.FINAL_STATUSES


def report(found: Evidence) -> list[Row]:
    """Return the figures of the report."""
    rows = found.rows.values()
    sent = Counter(row.channel for row in rows if row.status == SENT)
    ended = Counter("suppressed" if row.outcome == "suppressed" else row.status for row in rows)
    ends = (Status.FAILED, Status.EXPIRED, Status.CANCELLED, "suppressed")
    not_sent = ", ".join(f"{ended[each]:,} {each.lower()}" for each in ends)
    second = sum(row.status == SENT and row.provider == "sms-second" for row in rows)
    doubtful = [row for row in rows if row.is_doubtful]
    kept = sum(row.status == SENT for row in doubtful)
    return [
        Row("requests", len(found.traffic.samples), "by REST and by the broker"),
        Row("refused", len(found.traffic.refused) + len(found.parked), "as invalid"),
        Row("stored", len(rows), "the others repeat an earlier request"),
        Row("sent", sent.total(), ", ".join(f"{sent[each]:,} by {each}" for each in Channel)),
        Row("failed over", second, "texts sent by the second provider"),
        Row("retried", sum(row.attempts > 1 for row in rows), "took more than one attempt"),
        Row("not sent", sum(ended[each] for each in ends), not_sent),
        Row("in doubt", len(doubtful), f"lost a reply; {kept:,} of them are known to be sent"),
    ]


# The checks

# Tolerance between the clock of a dispatcher and the arrival, in seconds.
TRAVEL_SECONDS: Final = 0.5
TOO_LATE: Final = [{"path": "expiresAt", "message": "is in the past"}]


def check(found: Evidence) -> Iterator[Check]:
    """Yield every check of the run."""
    yield from _of_intake(found)
    yield from _of_sending(found)
    cut = [id_ for id_, row in found.rows.items() if row.was_interrupted]
    ended = [id_ for id_ in cut if found.is_final(id_)]
    said = f"{len(ended)} of their {len(cut)} interrupted sends have ended"
    yield Check("killed dispatchers", len(ended) == len(cut) > 0, said)
    yield Check("queues empty", not found.messages, f"{found.messages} messages left")


def _of_intake(found: Evidence) -> Iterator[Check]:
    traffic, samples = found.traffic, {each.number: each for each in found.traffic.samples}
    wrong = {number for number, each in samples.items() if each.kind == "wrong"}
    errors = traffic.refused | dict(found.parked)
    refused = errors.keys()
    said = f"{len(wrong):,} invalid requests in the file, {len(refused):,} refused"
    yield none_of("invalid ones refused", wrong - refused, said)
    # A code may have expired when its request arrived.
    late = {each for each in refused if errors[each] == TOO_LATE and samples[each].kind == "code"}
    said = f"{len(late)} valid codes expired on their way" if late else "all others were accepted"
    yield none_of("valid ones accepted", refused - wrong - late, said)
    numbers = [number for number, _ in found.parked]
    said = f"{len(numbers):,} of {traffic.published:,} messages of the broker parked"
    yield none_of("none parked twice", repeated(numbers), said, and_also=traffic.is_taken)
    yield none_of("expected replies", traffic.surprises, "202 or 400 to each request")
    different = {
        each.line.get("request", {}).get("dedupeKey") or number
        for number, each in samples.items()
        if number not in refused
    }
    said = f"{len(found.rows):,} stored, {len(different):,} different requests accepted"
    yield Check("stored once", len(found.rows) == len(different), said)


def _of_sending(found: Evidence) -> Iterator[Check]:
    rows, cancelled = found.rows, found.traffic.cancelled
    promised = {*found.traffic.accepted.values(), *rows}
    lost = [id_ for id_ in promised if not found.is_final(id_)]
    yield none_of("none lost", lost, f"{len(promised):,} accepted, each in a final state")
    sent = {(row.channel, id_) for id_, row in rows.items() if row.status == SENT}
    in_doubt = {(row.channel, id_) for id_, row in rows.items() if row.is_doubtful}
    said = f"also none of the {len(in_doubt)} that lost a reply"
    yield none_of("none sent twice", repeated(id_ for _, id_, _ in found.arrivals), said)
    arrived = {(channel, id_) for channel, id_, _ in found.arrivals}
    unseen = [id_ for _, id_ in sent - arrived]
    yield none_of("each sent one arrived", unseen, f"{len(sent):,} sent and received")
    in_doubt -= sent
    unsaid = [id_ for _, id_ in arrived - sent - in_doubt]
    said = f"{len(arrived):,} received; {len(arrived & in_doubt)} of them recorded as in doubt"
    yield none_of("each arrival recorded", unsaid, said)
    ends = {id_: row.expires_at.timestamp() for id_, row in rows.items() if row.expires_at}
    allowed = TRAVEL_SECONDS + found.lag
    late = {id_ for _, id_, at in found.arrivals if at > ends.get(id_, at) + allowed}
    said = f"nothing arrived more than {allowed:.1f} s after its expiresAt"
    yield none_of("none sent late", late, said)
    unwanted = {id_ for _, id_ in arrived} & set(cancelled)
    yield none_of("no cancelled one sent", unwanted, f"{len(cancelled)} cancelled with DELETE")
    said = f"{found.unsigned} webhooks without a valid signature"
    yield Check("webhooks signed", not found.unsigned, said)
