"""The act of the jobs: a client that knows only HTTP, and the services whose urls are called."""

from __future__ import annotations

import io
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from django.core.management import call_command
from django.db.models import QuerySet

from delayed_queue import RetryPolicy
from delayed_queue.http.jobs.kinds import MAX_SHARDS, kinds_of_topic
from delayed_queue.http.models import ApiToken, CallbackAttempt, Endpoint, Host, Topic
from delayed_queue.http.tokens import VERBS, create_token
from example_project.demo.clients import Client, Threads
from example_project.demo.report import Check, DemoError, Outcome, Row, none_of, repeated
from example_project.demo.stage import Act, Stage, messages_of
from example_project.fakes import Call, FakeWeb

ORDERS_TOPIC: Final = "close-order"
REFUNDS_TOPIC: Final = "poll-refund"
UPSTREAMS_TOPIC: Final = "notify-upstream"
TOPICS: Final = (ORDERS_TOPIC, REFUNDS_TOPIC, UPSTREAMS_TOPIC)
CLIENT: Final = "demo"
WORKERS: Final = 2
SEED: Final = 7


class JobsAct(Act):
    """A client closes orders, checks refunds and reports payments, all over HTTP."""

    name = "jobs"
    introduction = "an HTTP client closes orders, checks refunds, reports payments"

    def leftovers(self) -> Iterator[QuerySet[Any]]:
        """Yield the topics with their jobs and attempts, the token, and the receivers."""
        for topic in TOPICS:
            yield from messages_of(*kinds_of_topic(topic, MAX_SHARDS))
        yield CallbackAttempt.objects.filter(topic__in=TOPICS)
        yield Topic.objects.filter(name__in=TOPICS)
        yield ApiToken.objects.filter(name=CLIENT)
        yield Endpoint.objects.filter(origin__startswith="http://127.0.0.1:")
        yield Host.objects.filter(name__startswith="127.0.0.1:")

    def prepare(self, stage: Stage) -> None:
        """Open the receivers, and allow calls of their private addresses."""
        self._shop, self._upstream = (stage.enter(FakeWeb()) for _ in range(2))
        self._upstream.hang_seconds = 2.0
        stage.ports += [self._shop.port, self._upstream.port]
        # The default of 30 s would outlast the demo.
        stage.environment["CALLBACK_BREAKER_PAUSE"] = "1"

    def run(self, stage: Stage) -> Outcome:
        """Run the three scenarios side by side."""
        client = Jobs(f"{stage.web}/queue", create_token(CLIENT, verbs=VERBS, topics=TOPICS))
        receivers = (self._shop, self._upstream)
        for receiver in receivers:
            receiver.secret = _secret_for(receiver)
        workers = stage.start_workers(WORKERS, "worker", "--callbacks-only")
        dice = random.Random(SEED)  # noqa: S311 # the same run each time, not security
        orders, refunds = Orders(client, self._shop, dice), Refunds(client, dice)
        upstreams = Upstreams(client, self._upstream, dice)
        scenarios = (orders, refunds, upstreams)

        def state() -> str:
            counts = len(self._shop.calls), len(orders.paid_at), len(refunds.finished)
            text = "{} orders closed, {} paid; {} refunds completed; {} calls about payments"
            return text.format(*counts, len(self._upstream.calls))

        with stage.threads() as clients:
            for each in scenarios:
                each.begin(clients)
            stage.wait(upstreams.are_dead, state)
            upstreams.mend()
            stage.wait(lambda: all(each.is_done for each in scenarios), state)
        stage.stop(workers)
        unsigned = sum(each.unsigned for each in receivers)
        checks = [
            *(check for each in scenarios for check in each.checks()),
            Check("calls signed", not unsigned, f"{unsigned} calls without a valid signature"),
        ]
        calls = self._upstream.calls
        failed = [each.answer.split()[0] for each in calls if not each.succeeded]
        looks = sum(map(len, refunds.looks.values()))
        rows = [
            Row("paid", len(orders.paid_at), f"of {ORDERS:,} orders, so their jobs were deleted"),
            Row("closed", len(self._shop.calls), "orders, by a call of the job's URL"),
            Row("refunds", len(refunds.finished), f"completed after {looks} checks"),
            Row("reported", len(calls) - len(failed), f"payments, by {len(calls)} calls"),
            Row("failed", len(failed), f"of these calls: {', '.join(sorted(set(failed)))}"),
            Row("kicked", upstreams.kicked, "dead jobs, after their receivers were repaired"),
        ]
        return Outcome(rows, checks)


def _secret_for(receiver: FakeWeb) -> str:
    """Register the receiver as an operator does; return its secret."""
    said = io.StringIO()
    call_command("queueendpoint", "add", receiver.at("/"), stdout=said, stderr=io.StringIO())
    return said.getvalue().split()[-1]


class Jobs(Client):
    """The calls of the job API."""

    def ask(self, method: str, path: str, body: object = None, *, missing: Any = None) -> Any:
        """Return the JSON of the reply; ``missing``, if given, for a job that is not found."""
        status, answer = self.call(method, path, body)
        if status == 404 and missing is not None:
            return missing
        if status >= 400:
            raise DemoError(f"The reply to {method} {path} was {status}: {answer}")
        return answer


def _by(name: str, receiver: FakeWeb) -> dict[str, list[Call]]:
    """Return the calls that have arrived, by a field of their body."""
    found: dict[str, list[Call]] = defaultdict(list)
    for call in list(receiver.calls):
        found[call.body[name]].append(call)
    return found


def _path(topic: str, job_id: str) -> str:
    return f"/v1/topics/{topic}/jobs/{job_id}"


# First: close orders that are not paid

ORDERS: Final = 400
PAID_SHARE: Final = 0.6
PAYERS: Final = 4
# Maximum time of a call from its claim to the receiver, in seconds.
UNDER_WAY: Final = 2.0


class Orders:
    """Adds a job for each order; a payment deletes it, a call closes the others."""

    def __init__(self, client: Jobs, receiver: FakeWeb, dice: random.Random) -> None:
        self._client, self._receiver, self._dice = client, receiver, dice
        self.run_at: dict[str, float] = {}
        self.paid_at: dict[str, float] = {}

    def begin(self, clients: Threads) -> None:
        """Add all jobs with one call, and let customers pay, mostly before the deadline."""
        jobs = [
            {
                "jobId": f"order-{number:03}", "topic": ORDERS_TOPIC,
                "url": self._receiver.at("/orders/close"), "body": {"order": f"order-{number:03}"},
                "delay": round(self._dice.uniform(3, 13), 3),
            }
            for number in range(ORDERS)
        ]  # fmt: skip
        for answer in self._client.ask("POST", "/v1/jobs/bulk", jobs)["items"]:
            added = answer["job"]
            self.run_at[added["jobId"]] = datetime.fromisoformat(added["runAt"]).timestamp()
        paying = self._dice.sample(sorted(self.run_at), round(ORDERS * PAID_SHARE))
        now, draw = time.time(), self._dice.uniform
        times = sorted((draw(now, self.run_at[each] + 0.1), each) for each in paying)
        clients.play(self._pay, times, PAYERS)

    def _pay(self, order_id: str) -> None:
        if self._client.ask("DELETE", _path(ORDERS_TOPIC, order_id), missing=False) is None:
            self.paid_at[order_id] = time.time()

    @property
    def is_done(self) -> bool:
        return len(_by("order", self._receiver).keys() | self.paid_at) == len(self.run_at)

    def _is_late(self, order: str, call: Call) -> bool:
        """Return True if it came after the DELETE, and was not in progress then."""
        paid_at = self.paid_at.get(order, float("inf"))
        return call.arrived_at > paid_at + (UNDER_WAY if self.run_at[order] <= paid_at else 0)

    def checks(self) -> Iterator[Check]:
        calls = _by("order", self._receiver)
        lost = self.run_at.keys() - calls.keys() - self.paid_at.keys()
        yield none_of("no order lost", lost, f"{len(self.paid_at)} paid, {len(calls)} closed")
        twice = [order for order, some in calls.items() if len(some) > 1]
        yield none_of("none closed twice", twice, "one call for each closed order")
        first = {order: some[0] for order, some in calls.items()}
        early = [order for order, call in first.items() if call.arrived_at < self.run_at[order]]
        yield none_of("none closed early", early, "no call before its time")
        after = [order for order, some in calls.items() if self._is_late(order, some[-1])]
        yield none_of("no call after DELETE", after, "except calls that were in progress")


# Second: check refunds until they are completed, by consumers that pop

REFUNDS: Final = 40
CONSUMERS: Final = 3
AGAIN_AFTER: Final = 1.0
MOST_LOOKS: Final = 5


class Refunds:
    """Consumers pop jobs, check the refund, and release the job for another check."""

    def __init__(self, client: Jobs, dice: random.Random) -> None:
        self._client = client
        self._needed = {f"refund-{n:02}": dice.randint(1, MOST_LOOKS) for n in range(REFUNDS)}
        self.looks: dict[str, list[float]] = defaultdict(list)
        self.finished: list[str] = []

    def begin(self, clients: Threads) -> None:
        """Start the consumers, which wait, and then add the jobs."""
        for _ in range(CONSUMERS):
            clients.start(self._consume, clients)
        for refund in self._needed:
            job = {"jobId": refund, "topic": REFUNDS_TOPIC, "body": {"refund": refund}}
            self._client.ask("POST", "/v1/jobs", job)

    def _consume(self, clients: Threads) -> None:
        pop = f"/v1/topics/{REFUNDS_TOPIC}/pop?count=2&timeout=2"
        while not clients.over.is_set():
            for job in self._client.ask("POST", pop) or []:
                self._look(job["body"]["refund"], {"leaseToken": job["leaseToken"]})

    def _look(self, refund: str, lease: dict[str, Any]) -> None:
        self.looks[refund].append(time.time())
        path = _path(REFUNDS_TOPIC, refund)
        if len(self.looks[refund]) < self._needed[refund]:
            self._client.ask("POST", f"{path}/release", {**lease, "delay": AGAIN_AFTER})
        else:
            self._client.ask("POST", f"{path}/finish", lease)
            self.finished.append(refund)

    @property
    def is_done(self) -> bool:
        return len(self.finished) >= REFUNDS

    def checks(self) -> Iterator[Check]:
        lost = self._needed.keys() - set(self.finished)
        yield none_of("no refund lost", lost, f"{len(self.finished)} completed")
        extra = [name for name, looks in self.looks.items() if len(looks) != self._needed[name]]
        yield none_of("no extra check", extra, "one consumer at a time popped each refund")
        hasty = [
            name
            for name, looks in self.looks.items()
            if any(after - before < AGAIN_AFTER for before, after in pairwise(looks))
        ]
        yield none_of("no early check", hasty, f"at least {AGAIN_AFTER:.0f} s between two checks")


# Third: report payments to another system, with retries until it replies 2xx

PAYMENTS: Final = 80
LADDER: Final = "1s 1s 2s 3s"
ATTEMPTS: Final = 5
DEAF: Final = 6
# Alternately faults of the host, which open its circuit breaker, and of one call, which close it:
# the pause doubles for a host that always fails.
FAULTS: Final = (("500", "503 2", "reset", "hang"), ("302", "404"))
# Tolerance for the way of a reply; receiver and queue have the same clock.
TRAVEL_SECONDS: Final = 0.05


class Upstreams:
    """Payments reported by a ladder of seconds; some receivers fail until their jobs are dead."""

    def __init__(self, client: Jobs, receiver: FakeWeb, dice: random.Random) -> None:
        self._client, self._receiver, self._dice = client, receiver, dice
        # The faults of each payment's receiver before it accepts.
        self.faults: dict[str, list[str]] = {}
        self.kicked = 0
        receiver.rule = self._answer

    def begin(self, clients: Threads) -> None:
        """Add the jobs, each with the faults of its receiver."""
        for number in range(PAYMENTS):
            payment = f"payment-{number:02}"
            times = ATTEMPTS if number < DEAF else self._dice.choice((0, 0, 0, 1, 2, 3))
            self.faults[payment] = [self._dice.choice(FAULTS[turn % 2]) for turn in range(times)]
            job = {
                "jobId": payment, "topic": UPSTREAMS_TOPIC, "ladder": LADDER,
                "body": {"payment": payment}, "url": self._receiver.at("/payments/settled"),
                "delay": round(self._dice.uniform(0, 3), 3),
            }  # fmt: skip
            self._client.ask("POST", "/v1/jobs", job)

    def _answer(self, body: Any, times: int) -> str:
        return dict(enumerate(self.faults[body["payment"]], 1)).get(times, "200")

    def are_dead(self) -> bool:
        """Return True if the jobs of all failing receivers have used up their attempts."""
        calls = _by("payment", self._receiver)
        return all(
            len(calls[each]) >= ATTEMPTS
            and self._client.ask("GET", _path(UPSTREAMS_TOPIC, each))["state"] == "dead"
            for each in list(self.faults)[:DEAF]
        )

    def mend(self) -> None:
        """Repair all receivers, and kick the jobs."""
        self._receiver.rule = lambda body, times: "200"
        answer = self._client.ask("POST", f"/v1/topics/{UPSTREAMS_TOPIC}/kick?limit=100")
        self.kicked = int(answer["kicked"])

    def _told(self) -> list[str]:
        return [each.body["payment"] for each in list(self._receiver.calls) if each.succeeded]

    @property
    def is_done(self) -> bool:
        return len(set(self._told())) == PAYMENTS

    def checks(self) -> Iterator[Check]:
        yield from self.checks_of_calls()
        # The list of the API against the calls that arrived.
        name, calls = max(_by("payment", self._receiver).items(), key=lambda each: len(each[1]))
        answer = self._client.ask("GET", f"/v1/attempts?topic={UPSTREAMS_TOPIC}&job={name}")
        listed = len(answer["items"])
        said = f"the API lists {listed} for {name}, {len(calls)} arrived"
        yield Check("attempts listed", listed == len(calls), said)

    def checks_of_calls(self) -> Iterator[Check]:
        """Yield the checks that need the calls alone."""
        calls, told = _by("payment", self._receiver), self._told()
        yield none_of(
            "all payments reported", self.faults.keys() - set(told), f"{len(told)} payments"
        )
        yield none_of("none reported twice", repeated(told), "no call after a 2xx")
        hasty = [name for name, some in calls.items() if _is_hasty(some)]
        said = f"retries after {LADDER}, or after Retry-After"
        yield none_of("no early call", hasty, said)
        # A kicked job is a new message with a new webhook-id.
        ids = {name: {each.id for each in some[:ATTEMPTS]} for name, some in calls.items()}
        renamed = [name for name, found in ids.items() if len(found) > 1]
        yield none_of("one webhook-id a job", renamed, "the same in all attempts")
        said = f"{self.kicked} of {DEAF} jobs of failing receivers"
        yield Check("dead jobs kicked", self.kicked == DEAF, said)


def _is_hasty(calls: Sequence[Call]) -> bool:
    """Return True if a call came earlier than Retry-After, or the ladder, allows."""
    rungs = [each.total_seconds() for each in RetryPolicy.ladder(LADDER).delays]
    return any(
        after.arrived_at - before.answered_at
        < float(before.answer.partition(" ")[2] or rung) - TRAVEL_SECONDS
        for (before, after), rung in zip(pairwise(calls[:ATTEMPTS]), rungs, strict=False)
    )
