"""The act of the notifications: everything at once, and everyone else fails now and then."""

from __future__ import annotations

import json
import logging
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from typing import Any, Final, NamedTuple

from django.db import transaction
from django.db.models import Count, Exists, OuterRef
from kombu import Connection, Queue
from kombu.exceptions import KombuError

from delayed_queue.http.models import ApiToken
from delayed_queue.http.tokens import create_token
from delayed_queue.models import DeadLetter, Message
from delayed_queue.notifications import intake, sweeping
from delayed_queue.notifications.api import TOPIC
from delayed_queue.notifications.broker import Consumer
from delayed_queue.notifications.channels import signing_secrets
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.intake import Refused
from delayed_queue.notifications.models import (
    FINAL_STATUSES,
    OPEN_STATUSES,
    Channel,
    DedupeClaim,
    Delivery,
    Notification,
    ParkedRequest,
    Source,
    Status,
    queue_name,
)
from delayed_queue.notifications.services import QUEUES
from example_project.demo.fakes import FakeHook, FakeSms, FakeSmtp, is_signed
from example_project.demo.stage import (
    HOST,
    WORKER,
    Act,
    Check,
    Child,
    Client,
    Console,
    DemoError,
    Look,
    Outcome,
    Stage,
    Threads,
    filled,
    none_of,
    stopped,
)
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
    "--no-cron", *(part for queue in QUEUES for part in ("--queue", queue_name(*queue))),
)  # fmt: skip
RETRIES: Final = "1s 1s 2s 3s"


class NotificationsAct(Act):
    """Ten thousand requests by four ways in, and each is sent once or its end is told."""

    name = "notifications"
    introduction = "each is sent once, though providers fail and a dispatcher is killed"

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit

    @transaction.atomic
    def clear(self) -> None:
        """Delete the notifications of the demo's tenants, with all that belongs to them."""
        forget(TENANT, KINDS)
        ParkedRequest.objects.filter(origin=QUEUE).delete()
        ApiToken.objects.filter(name=TENANT).delete()

    def left(self) -> str:
        left = statuses()
        unsent = sum(left[status] for status in OPEN_STATUSES)
        return (
            f"Left in the database: {left.total():,} notifications, {unsent:,} of them not yet "
            "sent; the next run deletes them."
        )

    def prepare(self, stage: Stage) -> None:
        """Open the third parties, and say in the settings of all processes where they are."""
        set_up()
        self._strangers = Strangers(stage)
        stage.allow_calls(self._strangers.partners.port)
        stage.environment |= {
            "NOTIFICATION_PROVIDERS": json.dumps(self._strangers.providers()),
            "NOTIFICATION_RETRIES": RETRIES,
        }

    def run(self, stage: Stage) -> Outcome:
        began, address = time.monotonic(), stage.web
        token = create_token(TENANT, verbs=["add", "read", "delete"], topics=[TOPIC])
        dispatchers = stage.start_workers(DISPATCHERS, "dispatcher", *DISPATCHING)
        trouble = Trouble(self._strangers, stage, dispatchers)
        with ExitStack() as stack:
            consuming = stack.enter_context(Threads())
            broker = Broker(stage.console)
            stack.callback(broker.close)
            consuming.start(broker.consumer.run)
            traffic = read_traffic(self._limit, f"http://{HOST}:{self._strangers.partners.port}")
            posting = Posting(traffic, broker, Client(address, token))
            posters = stack.enter_context(Threads())
            posting.start(posters)
            stage.wait(lambda: _look(posting, posters, consuming, trouble))
        codes = stage.stop([each for each in trouble.dispatchers if each.is_running])
        found = gather(posting, self._strangers, codes)
        return report(found, time.monotonic() - began)


def forget(tenant: str, kinds: Sequence[str]) -> None:
    """Delete the notifications of this tenant, and what is in the queues for them."""
    ours = Notification.objects.filter(tenant=tenant)
    keys = [str(each) for each in ours.values_list("pk", flat=True)]
    for model in (Message, DeadLetter):
        for start in range(0, len(keys), 5000):
            part = keys[start : start + 5000]
            model.objects.filter(kind__in=kinds, key__in=part).delete()
    Delivery.objects.filter(notification__tenant=tenant).delete()
    ours.delete()
    DedupeClaim.objects.filter(tenant=tenant).delete()


def statuses() -> Counter[str]:
    """Return how many of our notifications are in each state."""
    ours = Notification.objects.filter(tenant=TENANT).order_by()
    return Counter(dict(ours.values_list("status").annotate(Count("pk"))))


def _look(posting: Posting, posters: Threads, consuming: Threads, trouble: Trouble) -> Look:
    """Do what is to be done now, and tell where things stand."""
    consuming.check()
    # What the schedule ``notifications-sweeps`` does once a minute: it ends those whose attempts
    # were used up when their dispatcher was killed.
    sweeping.expire_overdue()
    sweeping.fail_dead()
    trouble.look(posting.traffic.share)
    is_posted = posters.are_done and posting.taken == posting.published
    left = Message.objects.filter(kind__in=KINDS).count()
    # Last, or it may be from before the last came in.
    counts = statuses()
    waiting = sum(counts[status] for status in OPEN_STATUSES)
    ended = counts[Status.FAILED] + counts[Status.EXPIRED] + counts[Status.CANCELLED]
    sent = counts[Status.SUCCESSFULLY_PROCESSED]
    text = f"{counts.total():,} stored: {waiting:,} wait, {sent:,} sent, {ended:,} not to be sent"
    is_done = is_posted and trouble.is_over and not waiting and not left
    return Look(is_done, (counts, left, posting.published), text)


# What is asked for, by whom, and when


class Way(StrEnum):
    SINGLE = "REST, one by one"
    BULK = "REST, in bulk"
    BROKER = "broker"
    CAMPAIGN = "campaign"


class Answer(NamedTuple):
    """The answer to a request: the id of its notification, or its errors."""

    number: int
    id: str = ""
    reason: str = ""


def way_of(sample: Sample) -> Way:
    """Codes come one by one, as somebody waits for each; what is no JSON fits no bulk."""
    if sample.kind == "offer":
        return Way.CAMPAIGN
    if sample.via == "broker":
        return Way.BROKER
    return Way.SINGLE if sample.kind == "code" or "text" in sample.line else Way.BULK


@dataclass(slots=True)
class Traffic:
    """All samples by their way, and the pace at which they are played."""

    samples: dict[Way, list[Sample]]
    seconds: float
    webhooks: str
    began_at: float = field(default_factory=time.time)

    @property
    def by_number(self) -> dict[int, Sample]:
        return {each.number: each for some in self.samples.values() for each in some}

    @property
    def share(self) -> float:
        """How much of the time in which requests come is over."""
        return (time.time() - self.began_at) / self.seconds

    def due_at(self, sample: Sample) -> float:
        """Return when it comes, in seconds of Unix time: the file's minute takes ``seconds``."""
        return self.began_at + sample.after.total_seconds() * self.seconds / self.length

    @property
    def length(self) -> float:
        return max(some[-1].after.total_seconds() for some in self.samples.values() if some)

    def body(self, sample: Sample) -> bytes:
        return sample.body(datetime.now(UTC), self.webhooks, HURRY)

    def batches(self, samples: list[Sample], most: int) -> Iterator[list[Sample]]:
        """Yield them in order, together those that come within a moment."""
        batch: list[Sample] = []
        for each in samples:
            is_later = batch and self.due_at(each) > self.due_at(batch[0]) + GATHER_SECONDS
            if is_later or len(batch) == most:
                yield batch
                batch = []
            batch.append(each)
        if batch:
            yield batch


def read_traffic(limit: int | None, webhooks: str) -> Traffic:
    """Read the file, or its first lines."""
    samples: dict[Way, list[Sample]] = {way: [] for way in Way}
    for each in islice(read_samples(), limit):
        samples[way_of(each)].append(each)
    count = sum(map(len, samples.values()))
    return Traffic(samples, max(SECONDS * count / ALL, LEAST_SECONDS), webhooks)


def reason_of(errors: Iterable[dict[str, str]]) -> str:
    """Return what was wrong: all ways in say it alike."""
    return "; ".join(f"{each.get('path') or 'request'}: {each.get('message')}" for each in errors)


@dataclass(slots=True)
class Posting:
    """Threads that post, each request at its time; what they were answered is kept."""

    traffic: Traffic
    broker: Broker
    client: Client
    answers: list[Answer] = field(default_factory=list)
    published: int = 0
    cancelled: list[str] = field(default_factory=list)
    # Answers that a service must never get.
    surprises: list[str] = field(default_factory=list)

    def start(self, threads: Threads) -> None:
        singles = self.traffic.samples[Way.SINGLE]
        for start in range(3):
            threads.start(self._play, self._post, singles[start::3], threads.over)
        samples = self.traffic.samples
        threads.start(self._play, self._post_bulk, samples[Way.BULK], threads.over, 500)
        threads.start(self._play, self._publish, samples[Way.BROKER], threads.over)
        threads.start(self._play, self._import, samples[Way.CAMPAIGN], threads.over, 500)

    @property
    def taken(self) -> int:
        """How many of what was published the consumer has stored or parked."""
        return sum(astuple(self.broker.consumer.tally))

    def _play(
        self,
        send: Callable[[list[Sample]], None],
        samples: list[Sample],
        over: threading.Event,
        most: int = 1,
    ) -> None:
        """Send the requests when they are due, so many at once."""
        for batch in self.traffic.batches(samples, most):
            if over.wait(max(self.traffic.due_at(batch[-1]) - time.time(), 0)):
                return
            send(batch)

    def _post(self, batch: list[Sample]) -> None:
        [each] = batch
        status, answer = self.client.call("POST", "/v1/notifications", self.traffic.body(each))
        self._note(each, status, answer)

    def _post_bulk(self, batch: list[Sample]) -> None:
        lines = b"\n".join(self.traffic.body(each) for each in batch)
        path, kind = "/v1/notifications/bulk", "application/x-ndjson"
        status, answer = self.client.call("POST", path, lines, kind)
        items = answer.get("items", []) if status == 202 else []
        if len(items) != len(batch):
            self.surprises.append(f"{status} to a bulk of {len(batch)}")
        for each, item in zip(batch, items, strict=False):
            self._note(each, 400 if "errors" in item else 202, item)
            if each.kind == "reminder" and each.number % 10 == 0 and "id" in item:
                self._cancel(item["id"])

    def _cancel(self, id_: str) -> None:
        status, _ = self.client.call("DELETE", f"/v1/notifications/{id_}")
        if status == 204:
            self.cancelled.append(id_)
        elif status != 409:  # it is being sent, or was
            self.surprises.append(f"{status} to DELETE")

    def _note(self, sample: Sample, status: int, answer: dict[str, Any]) -> None:
        if status not in (202, 400):
            self.surprises.append(f"{status} to request {sample.number + 1}")
        errors = answer.get("errors") or [{"message": str(answer.get("code", status))}]
        id_ = answer["id"] if status == 202 else ""
        self.answers.append(Answer(sample.number, id_, "" if id_ else reason_of(errors)))

    def _publish(self, batch: list[Sample]) -> None:
        [each] = batch
        self.broker.publish(f"demo-{each.number}", self.traffic.body(each))
        self.published += 1

    def _import(self, batch: list[Sample]) -> None:
        """Store them as a pipeline does: by the intake itself."""
        rows = [json.loads(self.traffic.body(each)) for each in batch]
        found = intake.accept(rows, tenant=TENANT, source=Source.IMPORT)
        for each, answer in zip(batch, found, strict=True):
            if isinstance(answer, Refused):
                reason = reason_of(error.as_dict() for error in answer.errors)
                self.answers.append(Answer(each.number, reason=reason))
            else:
                self.answers.append(Answer(each.number, str(answer.id)))


QUEUE: Final = "notifications-demo"
MEMORY: Final = "memory://"


class Broker:
    """The RabbitMQ that AMQP_URL names, or else a queue in memory; and the service's consumer."""

    def __init__(self, console: Console) -> None:
        url = get_settings().BROKER_URL
        console.step("broker", "in memory, no AMQP_URL" if url == MEMORY else "RabbitMQ")
        options = {} if url == MEMORY else {"confirm_publish": True}
        self._connection = Connection(url, transport_options=options, connect_timeout=5)
        self._queue = Queue(QUEUE, durable=True)
        try:
            self._queue = self._queue(self._connection.default_channel)
            self._queue.declare()
            self._queue.purge()
        except (OSError, KombuError) as error:
            raise DemoError(f"The broker of AMQP_URL: {type(error).__name__}") from error
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


# The third parties, and when they fail: by what they are sent, so that each run has the same faults

LATENCY, SLOW_LATENCY = 0.02, 0.8
# How long the dispatchers wait for an answer, and how long one who hangs gives none.
TIMEOUT_SECONDS, HANG_SECONDS = 2.0, 4.0
# Of so many addresses, or numbers, one has this fault.
_MAIL: Final = {"450": 25, "drop": 400, "hang": 600, "drop-after": 250}
_TEXTS: Final = {"503": 20, "429": 40, "drop": 60, "drop-after": 30, "hang-after": 200}
_BLOCKED: Final = {"blocked": 90}
_PARTNERS: Final = {"3": "503", "7": "500", "11": "drop-after", "16": "410"}
# This one never answers anything else.
DOWN_PARTNER: Final = "13"


def fault_of(text: str, shares: dict[str, int]) -> str:
    """Return the fault of a recipient, mostly none."""
    number = zlib.crc32(text.encode())
    for fault, share in shares.items():
        number, rest = divmod(number, share)
        if rest == 0:
            return fault
    return ""


class MailServer(FakeSmtp):
    """Refuses unknown addresses, greylists some, and hangs up before or after a body."""

    hang_seconds = HANG_SECONDS

    def __init__(self, *, latency: float = 0.0) -> None:
        super().__init__(latency=latency)
        self._met: Counter[str] = Counter()

    def at_recipient(self, address: str) -> str:
        if address.startswith("nobody-"):
            return "550"
        self._met[address] += 1
        fault = fault_of(address, _MAIL)
        return fault if self._met[address] == 1 and not fault.endswith("-after") else ""

    def at_data(self, address: str) -> str:
        fault = fault_of(address, _MAIL)
        return fault if fault.endswith("-after") else ""


class Texts(FakeSms):
    """Fails once for some numbers, blocks a few for good."""

    hang_seconds = HANG_SECONDS

    def behaviour(self, fields: dict[str, str], times: int) -> str:
        blocked = fault_of(fields["to"], _BLOCKED)
        return blocked or (fault_of(fields["to"], _TEXTS) if times == 1 else "")


class Partners(FakeHook):
    """Twenty partners: some stumble once, one is gone, one is down."""

    hang_seconds = HANG_SECONDS

    def behaviour(self, path: str, times: int) -> str:
        partner = path.rpartition("/")[2]
        if partner == DOWN_PARTNER:
            return "503"
        return _PARTNERS.get(partner, "") if times == 1 else ""


class Strangers:
    """All of them, up as long as the stage is."""

    def __init__(self, stage: Stage) -> None:
        self.mail = stage.enter(MailServer(latency=LATENCY))
        self.texts = [stage.enter(Texts(latency=LATENCY)) for _ in range(2)]
        self.partners = stage.enter(Partners())

    def take(self, seconds: float) -> None:
        """Have everyone take so long from now on."""
        for each in (self.mail, *self.texts):
            each.latency = seconds

    def providers(self) -> dict[str, list[dict[str, Any]]]:
        """Return the setting NOTIFICATION_PROVIDERS that leads to them."""
        mail = {
            "kind": "email", "name": "mail", "sender": "Shop <shop@example.org>",
            "host": HOST, "port": self.mail.port, "threads": 30, "timeout": TIMEOUT_SECONDS,
        }  # fmt: skip
        texts = [
            {
                "kind": "http", "name": name, "url": server.url,
                "idempotency_header": "Idempotency-Key", "timeout": TIMEOUT_SECONDS,
                "codes": {"blocked": "permanent"},
            }
            for name, server in zip(("sms-first", "sms-second"), self.texts, strict=True)
        ]  # fmt: skip
        return {"email": [mail], "sms": texts, "webhook": [{"kind": "webhook", "name": "partners"}]}


# What goes wrong on the way: both SMS providers, one after the other, and a dispatcher killed

# Shares of the time in which requests come.
FIRST_DOWN, SECOND_DOWN, SECOND_DOWN_FOR, FIRST_UP, SLOW_FROM = 0.3, 0.38, 0.06, 0.55, 0.65
WANTED_IN_HAND, FEWEST_IN_HAND = 30, 4


@dataclass(slots=True)
class Trouble:
    """Happens once each, when ``look`` finds its time come."""

    strangers: Strangers
    stage: Stage
    dispatchers: list[Child]
    killed: Child | None = None
    _first_was_down: bool = False
    _second_down_at: float | None = None
    _slow_since: float = 0.0

    @property
    def is_over(self) -> bool:
        return self.killed is not None and not self.strangers.texts[0].is_down

    def look(self, share: float) -> None:
        """Do what is to be done at this share of the time."""
        self._take_down(share)
        if share >= SLOW_FROM and self.killed is None:
            self._kill_one()

    def _take_down(self, share: float) -> None:
        (first, second), step = self.strangers.texts, self.stage.console.step
        if not self._first_was_down and share >= FIRST_DOWN:
            self._first_was_down = first.is_down = True
            step("outage", "the first SMS provider answers 503; the second takes over")
        # Not before it has taken over, which on a busy machine may take a while.
        if self._second_down_at is None and share >= SECOND_DOWN and second.accepted:
            self._second_down_at, second.is_down = share, True
            step("outage", "the second one, too: texts wait, and some expire")
        if second.is_down and share >= (self._second_down_at or 0.0) + SECOND_DOWN_FOR:
            second.is_down = False
            step("mended", "the second SMS provider is back")
        if first.is_down and not second.is_down and share >= FIRST_UP:
            first.is_down = False
            step("mended", "the first SMS provider is back")

    def _kill_one(self) -> None:
        """Have everyone take their time, and kill a dispatcher when much is being sent."""
        if not self._slow_since:
            self.strangers.take(SLOW_LATENCY)
            self._slow_since = time.monotonic()
        in_hand = Notification.objects.filter(tenant=TENANT, status=Status.PROCESSING).count()
        is_patient = time.monotonic() - self._slow_since < 1.5
        if in_hand < (WANTED_IN_HAND if is_patient else FEWEST_IN_HAND):
            return
        self.killed = self.dispatchers[0]
        self.killed.end()
        self.strangers.take(LATENCY)
        successor = self.stage.start("dispatcher", *WORKER, *DISPATCHING)
        self.dispatchers.append(successor)
        said = f"dispatcher {self.killed.pid} by SIGKILL; {successor.pid} takes its place"
        self.stage.console.step("kill", said)


# What everybody saw: those who asked, the table, and the strangers at the other end


def rows_of_table() -> dict[str, Any]:
    """Return our notifications by id; ``is_doubtful`` are those of which an answer was lost."""
    lost = (Delivery.Outcome.AMBIGUOUS, Delivery.Outcome.UNFINISHED)
    calls = Delivery.objects.filter(notification=OuterRef("pk"), outcome__in=lost)
    ours = Notification.objects.filter(tenant=TENANT)
    return {str(each.pk): each for each in ours.annotate(is_doubtful=Exists(calls))}


def is_final(row: Any) -> bool:
    return row is not None and row.status in FINAL_STATUSES


def is_sent(row: Any) -> bool:
    return bool(row.status == Status.SUCCESSFULLY_PROCESSED)


@dataclass(slots=True)
class Evidence:
    """All of it, gathered when everything had come to its end."""

    posting: Posting
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
        return [*(each for each in self.posting.answers if not each.id), *self.parked]

    def sightings(self) -> Iterator[tuple[str, str, int, float]]:
        """Yield channel, notification, how often and when for all that strangers accepted."""
        for channel, servers in self.witnesses.items():
            for each in servers:
                for id_, times in each.accepted.items():
                    yield channel, id_, times, each.began_at.get(id_, 0.0)


def gather(posting: Posting, strangers: Strangers, codes: Sequence[int]) -> Evidence:
    """Gather it; nothing may run any more."""
    [secret] = signing_secrets()
    requests = strangers.partners.requests
    cut = Delivery.objects.filter(outcome=Delivery.Outcome.UNFINISHED)
    cut = cut.filter(notification__tenant=TENANT)
    return Evidence(
        posting=posting,
        rows=rows_of_table(),
        parked=_parked(),
        witnesses={
            Channel.EMAIL: [strangers.mail],
            Channel.SMS: strangers.texts,
            Channel.WEBHOOK: [strangers.partners],
        },
        unsigned=sum(not is_signed(secret, headers, body) for headers, body in requests),
        unfinished=[str(id_) for id_ in cut.values_list("notification_id", flat=True)],
        messages=Message.objects.filter(kind__in=KINDS).count(),
        exit_codes=codes,
    )


def _parked() -> list[Answer]:
    """Return a broker's messages that were parked, as often as they were."""
    rows = ParkedRequest.objects.filter(origin=QUEUE).values_list("message_id", "times", "errors")
    return [
        Answer(number_of(id_), reason=reason_of(errors))
        for id_, times, errors in rows
        for _ in range(times)
    ]


def number_of(message_id: str) -> int:
    """Return the number of the sample that was published under this id; -1 if none was."""
    number = message_id.removeprefix("demo-")
    return int(number) if number.isdecimal() else -1


_LINES: Final = (
    ("requests", "{requests:>7,}  by REST, broker and campaign, {refused:,} of them refused"),
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


def report(found: Evidence, seconds: float) -> Outcome:
    """Count, and compare what everybody saw."""
    rows = list(found.rows.values())
    sent = Counter(row.channel for row in rows if is_sent(row))
    status = Counter(row.status for row in rows)
    suppressed = sum(row.outcome == "suppressed" for row in rows)
    doubtful = [row for row in rows if row.is_doubtful]
    figures = {
        "requests": len(found.posting.traffic.by_number), "refused": len(found.refused),
        "stored": len(rows), "sent": sent.total(), "mails": sent[Channel.EMAIL],
        "texts": sent[Channel.SMS], "webhooks": sent[Channel.WEBHOOK],
        "failed_over": sum(is_sent(row) and row.provider == "sms-second" for row in rows),
        "retried": sum(row.attempts > 1 for row in rows), "failed": status[Status.FAILED],
        "expired": status[Status.EXPIRED], "suppressed": suppressed,
        "cancelled": status[Status.CANCELLED] - suppressed,
        "doubtful": len(doubtful), "doubtful_sent": sum(map(is_sent, doubtful)),
        "seconds": seconds,
    }  # fmt: skip
    return Outcome(figures, filled(_LINES, figures), list(check(found)))


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
    yield stopped(found.exit_codes)


def _of_intake(found: Evidence) -> Iterator[Check]:
    posting, samples = found.posting, found.posting.traffic.by_number
    wrong = {number for number, each in samples.items() if each.kind == "wrong"}
    refused = {each.number for each in found.refused}
    # A code may have expired when its request arrived.
    late = {
        each.number
        for each in found.refused
        if each.reason == TOO_LATE and samples[each.number].kind == "code"
    }
    said = f"{len(wrong):,} of the file are wrong, {len(refused):,} were refused"
    yield none_of("wrong, accepted", sorted(wrong - refused), said)
    said = f"{len(late)} more had expired on the way" if late else "all others were accepted"
    yield none_of("right, refused", sorted(refused - wrong - late), said)
    numbers = [each.number for each in found.parked]
    twice = sorted(number for number, times in Counter(numbers).items() if times > 1)
    said = f"{len(numbers):,} of {posting.published:,} published, each once"
    is_whole = posting.taken == posting.published
    yield none_of("parked twice", twice, said, and_also=is_whole)
    yield none_of("odd answers", posting.surprises, "nothing but 202 and 400")
    different = {
        each.line.get("request", {}).get("dedupeKey") or number
        for number, each in samples.items()
        if number not in refused
    }
    said = f"{len(found.rows):,} stored, {len(different):,} different ones accepted"
    yield Check("stored once", len(found.rows) == len(different), said)


def _of_sending(found: Evidence) -> Iterator[Check]:
    rows, seen, cancelled = found.rows, list(found.sightings()), found.posting.cancelled
    promised = {each.id for each in found.posting.answers if each.id} | rows.keys()
    lost = sorted(id_ for id_ in promised if not is_final(rows.get(id_)))
    yield none_of("lost", lost, f"{len(promised):,} accepted, each has come to an end")
    times: Counter[str] = Counter()
    for _, id_, count, _ in seen:
        times[id_] += count
    twice = sorted(id_ for id_, count in times.items() if count > 1)
    doubtful = sum(row.is_doubtful for row in rows.values())
    yield none_of("sent twice", twice, f"though of {doubtful} one could not know whether they were")
    arrived = {(channel, id_) for channel, id_, _, _ in seen}
    sent = {(row.channel, id_) for id_, row in rows.items() if is_sent(row)}
    unseen = sorted(id_ for _, id_ in sent - arrived)
    yield none_of("sent, not seen", unseen, f"{len(sent):,} sent, each was received")
    in_doubt = {(row.channel, id_) for id_, row in rows.items() if row.is_doubtful} - sent
    unsaid = sorted(id_ for _, id_ in arrived - sent - in_doubt)
    said = f"{len(times):,} received: sent, or {len(arrived & in_doubt)} recorded as in doubt"
    yield none_of("seen, not sent", unsaid, said)
    late = sorted(id_ for _, id_, _, at in seen if id_ in rows and _is_late(rows[id_], at))
    yield none_of("sent late", late, "nothing arrived after its expiresAt")
    unwanted = sorted(times.keys() & set(cancelled))
    yield none_of("cancelled, sent", unwanted, f"{len(cancelled)} were cancelled with DELETE")
    yield Check("unsigned 0", not found.unsigned, "every webhook had a valid signature")


def _is_late(row: Any, began_at: float) -> bool:
    return row.expires_at is not None and began_at > row.expires_at.timestamp() + TRAVEL_SECONDS
