"""The act of the notifications: everything at once, and everyone else fails now and then."""

from __future__ import annotations

import json
import logging
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from django.db import transaction
from django.db.models import Count, Exists, OuterRef
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
from example_project.demo import acts
from example_project.demo.acts import Check, Stage, State, none_of, repeated
from example_project.demo.fakes import FakeSms, FakeSmtp, Receiver
from example_project.samples import Sample, read_samples, set_up

# The file's minute, and at least so long for fewer requests.
SECONDS, LEAST_SECONDS, ALL = 24.0, 8.0, 10_000
# How much sooner than in the file what is for later is due, and expires what expires.
HURRY: Final = 2.5
# How long requests are gathered for one call.
GATHER_SECONDS: Final = 0.4
TENANT: Final = "demo-shop"
KINDS: Final = [queue.kind for queue in QUEUES.values()]
DISPATCHERS: Final = 2
# A short lease, so that what the killed one held comes back while one watches.
DISPATCHING: Final = (
    "--async-concurrency", "60", "--poll-interval", "1", "--lease", "5", "--shutdown-timeout", "5",
    "--no-cron", *(part for each in QUEUES for part in ("--queue", models.queue_name(*each))),
)  # fmt: skip
RETRIES: Final = "1s 1s 2s 3s"
# Shares of the time in which requests come: when both SMS providers go down, and for how long the
# second does; when the first is back; and when everybody gets slow.
FIRST_DOWN, SECOND_DOWN, SECOND_DOWN_FOR, FIRST_UP, SLOW_FROM = 0.3, 0.38, 0.06, 0.55, 0.65
LATENCY, SLOW_LATENCY, SLOW_SECONDS = 0.02, 0.8, 1.5
# A dispatcher is killed that sends so many; after ``SLOW_SECONDS`` a few will do.
MOST_IN_FLIGHT, FEWEST_IN_FLIGHT = 30, 4


class NotificationsAct(acts.Act):
    """Ten thousand requests by three ways in, and each is sent once or its end is told."""

    name = "notifications"
    introduction = "each is sent once, though providers fail and a dispatcher is killed"

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit

    @transaction.atomic
    def clear(self) -> None:
        """Delete the notifications of the demo's tenant, with all that belongs to them."""
        forget(TENANT, KINDS)
        models.ParkedRequest.objects.filter(origin=QUEUE).delete()
        ApiToken.objects.filter(name=TENANT).delete()

    def prepare(self, stage: Stage) -> None:
        """Open the third parties, and say in the settings of all processes where they are."""
        set_up()
        self.mail = stage.enter(FakeSmtp(mail_fault, latency=LATENCY))
        self.texts = [stage.enter(FakeSms(text_fault, latency=LATENCY)) for _ in range(2)]
        self.partners = stage.enter(Receiver())
        [self.partners.secret] = signing_secrets()
        for number in range(1, 21):
            self.partners.rules[f"/partners/{number}"] = partial(partner_fault, number)
        for each in (self.mail, *self.texts):
            each.hang_seconds = HANG_SECONDS
        stage.allow_calls(self.partners.port)
        stage.environment |= {
            "NOTIFICATION_PROVIDERS": json.dumps(providers(self.mail, self.texts)),
            "NOTIFICATION_RETRIES": RETRIES,
        }

    def run(self, stage: Stage) -> acts.Outcome:
        began, address = time.monotonic(), stage.web
        token = create_token(TENANT, verbs=["add", "read", "delete"], topics=[TOPIC])
        dispatchers = stage.start_workers(DISPATCHERS, "dispatcher", *DISPATCHING)
        with ExitStack() as stack:
            consuming = stack.enter_context(acts.Threads())
            broker = Broker(stage)
            stack.callback(broker.close)
            consuming.start(broker.consumer.run)
            samples = {each.number: each for each in islice(read_samples(), self._limit)}
            seconds = max(SECONDS * len(samples) / ALL, LEAST_SECONDS)
            client = acts.Client(address, token)
            traffic = Traffic(samples, seconds, client, broker, self.partners.at(""))
            clients = stack.enter_context(acts.Threads())
            traffic.start(clients)
            watch = partial(stage.wait, state=partial(_state, traffic, consuming))
            self._take_down(traffic, watch, stage.console.step)
            self._kill_one(dispatchers, watch, stage)
            watch(lambda: clients.are_done and traffic.is_taken and _is_over())
        codes = stage.stop([each for each in dispatchers if each.is_running])
        return report(self._gather(traffic, codes), time.monotonic() - began)

    def _take_down(
        self, traffic: Traffic, watch: Callable[..., None], step: Callable[[str, str], None]
    ) -> None:
        """Have both SMS providers down, one after the other."""
        first, second = self.texts
        watch(lambda: traffic.share >= FIRST_DOWN)
        first.is_down = True
        step("outage", "the first SMS provider answers 503; the second takes over")
        # Not before it has taken over, which on a busy machine may take a while.
        watch(lambda: traffic.share >= SECOND_DOWN and second.total > 0)
        second.is_down, back = True, traffic.share + SECOND_DOWN_FOR
        step("outage", "the second one, too: texts wait, and some expire")
        watch(lambda: traffic.share >= back)
        second.is_down = False
        watch(lambda: traffic.share >= FIRST_UP)
        first.is_down = False
        step("mended", "both SMS providers are back, the second before the first")

    def _kill_one(
        self, dispatchers: list[acts.Child], watch: Callable[..., None], stage: Stage
    ) -> None:
        """Have everyone take their time, and kill a dispatcher when much is being sent."""
        servers = (self.mail, *self.texts)
        ours = Notification.objects.filter(tenant=TENANT, status=Status.PROCESSING)
        for each in servers:
            each.latency = SLOW_LATENCY
        fewer_at = time.monotonic() + SLOW_SECONDS

        def is_busy() -> bool:
            is_patient = time.monotonic() < fewer_at
            return ours.count() >= (MOST_IN_FLIGHT if is_patient else FEWEST_IN_FLIGHT)

        watch(is_busy)
        killed, successor = dispatchers[0], stage.replace(dispatchers[0], *DISPATCHING)
        for each in servers:
            each.latency = LATENCY
        dispatchers.append(successor)
        said = f"dispatcher {killed.pid} by SIGKILL; {successor.pid} takes its place"
        stage.console.step("kill", said)

    def _gather(self, traffic: Traffic, codes: Sequence[int]) -> Evidence:
        """Return what everybody saw; nothing may run any more."""
        unfinished = Delivery.objects.filter(
            outcome=Delivery.Outcome.UNFINISHED, notification__tenant=TENANT
        )
        return Evidence(
            traffic=traffic,
            rows=rows_of_table(),
            parked=parked(),
            witnesses={
                Channel.EMAIL: [self.mail], Channel.SMS: self.texts,
                Channel.WEBHOOK: [self.partners],
            },
            unsigned=self.partners.unsigned,
            unfinished=[str(each) for each in unfinished.values_list("notification_id", flat=True)],
            messages=Message.objects.filter(kind__in=KINDS).count(),
            exit_codes=codes,
        )  # fmt: skip


def forget(tenant: str, kinds: Sequence[str]) -> None:
    """Delete the notifications of this tenant, and what is in the queues for them."""
    ours = models.Notification.objects.filter(tenant=tenant)
    keys = [str(each) for each in ours.values_list("pk", flat=True)]
    for model in (Message, DeadLetter):
        for start in range(0, len(keys), 5000):
            part = keys[start : start + 5000]
            model.objects.filter(kind__in=kinds, key__in=part).delete()
    Delivery.objects.filter(notification__tenant=tenant).delete()
    ours.delete()
    models.DedupeClaim.objects.filter(tenant=tenant).delete()


def statuses() -> Counter[str]:
    """Return how many of our notifications are in each state."""
    ours = Notification.objects.filter(tenant=TENANT).order_by()
    return Counter(dict(ours.values_list("status").annotate(Count("pk"))))


def _state(traffic: Traffic, consuming: acts.Threads) -> State:
    _ = consuming.are_done  # or it has failed
    # What the schedule ``notifications-sweeps`` does once a minute: it ends those whose attempts
    # were used up when their dispatcher was killed.
    sweeping.expire_overdue()
    sweeping.fail_dead()
    counts = statuses()
    waiting = sum(counts[status] for status in models.OPEN_STATUSES)
    sent = counts[Status.SUCCESSFULLY_PROCESSED]
    text = f"{counts.total():,} stored: {waiting:,} wait, {sent:,} sent, "
    return (counts, traffic.published), f"{text}{counts.total() - waiting - sent:,} not to be sent"


def _is_over() -> bool:
    is_left = Message.objects.filter(kind__in=KINDS).exists()
    return not is_left and not any(statuses()[each] for each in models.OPEN_STATUSES)


# What is asked for, by whom, and when


class Way(StrEnum):
    SINGLE = "REST, one by one"
    BULK = "REST, in bulk"
    BROKER = "broker"


class Answer(NamedTuple):
    """The answer to a request: the id of its notification, or its errors."""

    number: int
    id: str = ""
    reason: str = ""


def way_of(sample: Sample) -> Way:
    """Codes come one by one, as somebody waits for each; what is no JSON fits no bulk."""
    if sample.via == "broker":
        return Way.BROKER
    return Way.SINGLE if sample.kind == "code" or "text" in sample.line else Way.BULK


@dataclass(slots=True)
class Traffic:
    """Requests, each sent at its time: the file's minute takes ``seconds``; and all answers."""

    samples: Mapping[int, Sample]
    seconds: float
    client: acts.Client
    broker: Broker
    webhooks: str = ""
    began_at: float = field(default_factory=time.time)
    answers: list[Answer] = field(default_factory=list)
    published: int = 0
    cancelled: list[str] = field(default_factory=list)
    # Answers that a service must never get.
    surprises: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """How much of the time in which requests come is over."""
        return (time.time() - self.began_at) / self.seconds

    @property
    def is_taken(self) -> bool:
        """Whether the consumer has stored or parked all that was published."""
        return bool(sum(astuple(self.broker.consumer.tally)) == self.published)

    def start(self, threads: acts.Threads) -> None:
        """Start a client for each way in, and three where each request waits for its answer."""
        by_way: dict[Way, list[Sample]] = {way: [] for way in Way}
        for each in self.samples.values():
            by_way[way_of(each)].append(each)
        for start in range(3):
            threads.play(self._post, self._batches(by_way[Way.SINGLE][start::3], 1))
        threads.play(self._publish, self._batches(by_way[Way.BROKER], 1))
        threads.play(self._post_bulk, self._batches(by_way[Way.BULK], 500))

    def due_at(self, sample: Sample) -> float:
        last = self.samples[len(self.samples) - 1]
        return self.began_at + sample.after / last.after * self.seconds

    def _batches(self, samples: list[Sample], most: int) -> Iterator[tuple[float, list[Sample]]]:
        """Yield the requests with their time, together those that come within a moment."""
        while samples:
            end = self.due_at(samples[0]) + GATHER_SECONDS
            batch = [each for each in samples[:most] if self.due_at(each) <= end]
            samples = samples[len(batch) :]
            yield self.due_at(batch[-1]), batch

    def _body(self, sample: Sample) -> bytes:
        return sample.body(datetime.now(UTC), self.webhooks, HURRY)

    def _post(self, batch: list[Sample]) -> None:
        [each] = batch
        self.note(each, *self.client.call("POST", "/v1/notifications", self._body(each)))

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
        elif status != 409:  # it is being sent, or was
            self.surprises.append(f"{status} to DELETE")

    def _publish(self, batch: list[Sample]) -> None:
        [each] = batch
        self.broker.publish(f"demo-{each.number}", self._body(each))
        self.published += 1

    def note(self, sample: Sample, status: int, answer: dict[str, Any]) -> None:
        if status not in (202, 400):
            self.surprises.append(f"{status} to request {sample.number + 1}")
        errors = answer.get("errors") or [{"message": str(answer.get("code", status))}]
        id_ = answer["id"] if status == 202 else ""
        self.answers.append(Answer(sample.number, id_, "" if id_ else reason_of(errors)))


def reason_of(errors: Sequence[dict[str, str]]) -> str:
    """Return what was wrong: all ways in say it alike."""
    return "; ".join(f"{each.get('path') or 'request'}: {each.get('message')}" for each in errors)


QUEUE: Final = "notifications-demo"
MEMORY: Final = "memory://"


class Broker:
    """The RabbitMQ that AMQP_URL names, or else a queue in memory; and the service's consumer."""

    def __init__(self, stage: Stage) -> None:
        url = get_settings().BROKER_URL
        stage.console.step("broker", "in memory, no AMQP_URL" if url == MEMORY else "RabbitMQ")
        options = {} if url == MEMORY else {"confirm_publish": True}
        self._connection = Connection(url, transport_options=options, connect_timeout=5)
        try:
            self._queue = Queue(QUEUE, durable=True)(self._connection.default_channel)
            self._queue.declare()
            self._queue.purge()
        except (OSError, KombuError) as error:
            raise acts.DemoError(f"The broker of AMQP_URL: {type(error).__name__}") from error
        self._producer = self._connection.Producer(auto_declare=False)
        self.consumer = Consumer(url=url, queue=QUEUE, tenant=TENANT)
        # Its lines would come between those of the demo.
        self._log = logging.getLogger("delayed_queue")
        self._level = self._log.level
        self._log.setLevel(logging.WARNING)

    def publish(self, id_: str, body: bytes) -> None:
        """Put a message into the queue; for one thread."""
        self._producer.publish(
            body, routing_key=QUEUE, message_id=id_, delivery_mode=2,
            content_type="application/json", content_encoding="utf-8",
        )  # fmt: skip

    def close(self) -> None:
        """Have the consumer end, and delete the queue."""
        self.consumer.stop()
        self._log.setLevel(self._level)
        with suppress(OSError, KombuError):
            self._queue.delete()
        self._connection.release()


# When third parties fail: by what they are sent, so that each run has the same faults

# How long the dispatchers wait for an answer, and how long one who hangs gives none.
TIMEOUT_SECONDS, HANG_SECONDS = 2.0, 4.0
# Of so many addresses, or numbers, one has this fault.
_MAIL: Final = {"450": 25, "drop": 400, "hang": 600, "drop-after": 250}
_TEXTS: Final = {"503": 20, "429": 40, "drop": 60, "drop-after": 30, "hang-after": 200}
_BLOCKED: Final = {"blocked": 90}
# Of the twenty partners; the one that is down never answers anything else.
_PARTNERS: Final = {3: "503", 7: "500", 11: "drop-after", 16: "410"}
DOWN_PARTNER: Final = 13


def _fault_of(text: str, shares: dict[str, int]) -> str:
    """Return the fault of a recipient, mostly none."""
    number = zlib.crc32(text.encode())
    for fault, share in shares.items():
        number, rest = divmod(number, share)
        if rest == 0:
            return fault
    return ""


def mail_fault(address: str, times: int) -> str:
    """Refuse unknown addresses, greylist some, and hang up before or after a body."""
    if address.startswith("nobody-"):
        return "550"
    fault = _fault_of(address, _MAIL)
    return fault if times == 1 or fault.endswith("-after") else ""


def text_fault(number: str, times: int) -> str:
    """Fail once for some numbers, block a few for good."""
    return _fault_of(number, _BLOCKED) or (_fault_of(number, _TEXTS) if times == 1 else "")


def partner_fault(number: int, body: object, times: int) -> str:
    """Some stumble once, one is gone, one is down."""
    if number == DOWN_PARTNER:
        return "503"
    return _PARTNERS.get(number, "200") if times == 1 else "200"


def providers(mail: FakeSmtp, texts: Sequence[FakeSms]) -> dict[str, list[dict[str, Any]]]:
    """Return the setting NOTIFICATION_PROVIDERS that leads to them."""
    email = {
        "kind": "email", "name": "mail", "sender": "Shop <shop@example.org>",
        "host": acts.HOST, "port": mail.port, "threads": 30, "timeout": TIMEOUT_SECONDS,
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


# What everybody saw: those who asked, the table, and the strangers at the other end


def rows_of_table() -> dict[str, Any]:
    """Return our notifications by id; ``is_doubtful`` are those of which an answer was lost."""
    lost = (Delivery.Outcome.AMBIGUOUS, Delivery.Outcome.UNFINISHED)
    calls = Delivery.objects.filter(notification=OuterRef("pk"), outcome__in=lost)
    ours = Notification.objects.filter(tenant=TENANT)
    return {str(each.pk): each for each in ours.annotate(is_doubtful=Exists(calls))}


def parked() -> list[Answer]:
    """Return a broker's messages that were parked, as often as they were."""
    rows = models.ParkedRequest.objects.filter(origin=QUEUE)
    return [
        Answer(number_of(each.message_id), reason=reason_of(each.errors))
        for each in rows
        for _ in range(each.times)
    ]


def number_of(message_id: str) -> int:
    """Return the number of the sample that was published under this id; -1 if none was."""
    number = message_id.removeprefix("demo-")
    return int(number) if number.isdecimal() else -1


def is_final(row: Any) -> bool:
    return row is not None and row.status in models.FINAL_STATUSES


def is_sent(row: Any) -> bool:
    return bool(row.status == Status.SUCCESSFULLY_PROCESSED)


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

    def sightings(self) -> Iterator[tuple[str, str, float]]:
        """Yield channel, notification and when for all that strangers accepted, as often."""
        for channel, servers in self.witnesses.items():
            for each in servers:
                for id_ in Counter(each.accepted).elements():
                    yield channel, id_, each.began_at.get(id_, 0.0)


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


def report(found: Evidence, seconds: float) -> acts.Outcome:
    """Count, and compare what everybody saw."""
    rows = list(found.rows.values())
    sent = Counter(row.channel for row in rows if is_sent(row))
    status = Counter(row.status for row in rows)
    suppressed = sum(row.outcome == "suppressed" for row in rows)
    doubtful = [row for row in rows if row.is_doubtful]
    figures = {
        "requests": len(found.traffic.samples), "refused": len(found.refused),
        "stored": len(rows), "sent": sent.total(), "mails": sent[Channel.EMAIL],
        "texts": sent[Channel.SMS], "webhooks": sent[Channel.WEBHOOK],
        "failed_over": sum(is_sent(row) and row.provider == "sms-second" for row in rows),
        "retried": sum(row.attempts > 1 for row in rows), "failed": status[Status.FAILED],
        "expired": status[Status.EXPIRED], "suppressed": suppressed,
        "cancelled": status[Status.CANCELLED] - suppressed,
        "doubtful": len(doubtful), "doubtful_sent": sum(map(is_sent, doubtful)),
        "seconds": seconds,
    }  # fmt: skip
    return acts.Outcome(figures, _ROWS, list(check(found)))


# What must hold

# What a stranger sees a moment after the dispatcher looked at its clock.
TRAVEL_SECONDS: Final = 0.5
TOO_LATE: Final = "expiresAt: is in the past"


def check(found: Evidence) -> Iterator[Check]:
    """Yield every check; the run is good if all have passed."""
    yield from _of_intake(found)
    yield from _of_sending(found)
    ended = [id_ for id_ in found.unfinished if is_final(found.rows.get(id_))]
    said = f"{len(ended)} of {len(found.unfinished)} sends that it had in flight have ended"
    is_whole = bool(ended) and len(ended) == len(found.unfinished)
    yield Check("killed dispatcher", is_whole, said)
    yield Check("queues empty", not found.messages, f"{found.messages} messages are left in them")
    yield acts.stopped(found.exit_codes)


def _of_intake(found: Evidence) -> Iterator[Check]:
    traffic, samples = found.traffic, found.traffic.samples
    wrong = {number for number, each in samples.items() if each.kind == "wrong"}
    refused = {each.number for each in found.refused}
    # A code may have expired when its request arrived.
    late = {
        each.number
        for each in found.refused
        if each.reason == TOO_LATE and samples[each.number].kind == "code"
    }
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
    rows, seen, cancelled = found.rows, list(found.sightings()), found.traffic.cancelled
    promised = {each.id for each in found.traffic.answers if each.id} | rows.keys()
    lost = [id_ for id_ in promised if not is_final(rows.get(id_))]
    yield none_of("lost", lost, f"{len(promised):,} accepted, each has come to an end")
    twice, received = repeated(id_ for _, id_, _ in seen), {id_ for _, id_, _ in seen}
    doubtful = sum(row.is_doubtful for row in rows.values())
    yield none_of("sent twice", twice, f"though of {doubtful} one could not know whether they were")
    arrived = {(channel, id_) for channel, id_, _ in seen}
    sent = {(row.channel, id_) for id_, row in rows.items() if is_sent(row)}
    unseen = [id_ for _, id_ in sent - arrived]
    yield none_of("sent, not seen", unseen, f"{len(sent):,} sent, each was received")
    in_doubt = {(row.channel, id_) for id_, row in rows.items() if row.is_doubtful} - sent
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
