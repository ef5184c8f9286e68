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
    """Orders closed, refunds polled, upstreams told."""

    name = "jobs"
    introduction = "asked for over HTTP: close orders, look after refunds, tell upstreams"

    def leftovers(self) -> Iterator[QuerySet[Any]]:
        """Yield the topics with their jobs and attempts, and what an earlier run set up."""
        for topic in TOPICS:
            yield from messages_of(*kinds_of_topic(topic, MAX_SHARDS))
        yield CallbackAttempt.objects.filter(topic__in=TOPICS)
        yield Topic.objects.filter(name__in=TOPICS)
        yield ApiToken.objects.filter(name=CLIENT)
        yield Endpoint.objects.filter(origin__startswith="http://127.0.0.1:")
        yield Host.objects.filter(name__startswith="127.0.0.1:")

    def prepare(self, stage: Stage) -> None:
        """Open the receivers, and allow calls to them: they are at private addresses."""
        self._shop, self._upstream = (stage.enter(FakeWeb()) for _ in range(2))
        self._upstream.hang_seconds = 2.0
        stage.ports += [self._shop.port, self._upstream.port]
        # For half a minute nobody wants to watch.
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
            text = "{} orders closed, {} paid; {} refunds through; upstreams called {} times"
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
            Check(f"unsigned {unsigned}", not unsigned, "every call had a signature"),
        ]
        calls = self._upstream.calls
        failed = [each.answer.split()[0] for each in calls if not each.succeeded]
        looks = sum(map(len, refunds.looks.values()))
        rows = [
            Row("paid", len(orders.paid_at), f"of {ORDERS:,} orders in time, their jobs deleted"),
            Row("closed", len(self._shop.calls), "by a call of their url"),
            Row("refunds", len(refunds.finished), f"through after {looks} looks"),
            Row("told", len(calls) - len(failed), f"upstreams in {len(calls)} calls"),
            Row("failed", len(failed), f"of these, by {', '.join(sorted(set(failed)))}"),
            Row("kicked", upstreams.kicked, "dead letters, whose upstreams were repaired"),
        ]
        return Outcome(rows, checks)


def _secret_for(receiver: FakeWeb) -> str:
    """Register the receiver as an operator does; return the secret that is shown once."""
    said = io.StringIO()
    call_command("queueendpoint", "add", receiver.at("/"), stdout=said, stderr=io.StringIO())
    return said.getvalue().split()[-1]


class Jobs(Client):
    """The calls of the job API."""

    def ask(self, method: str, path: str, body: object = None, *, missing: Any = None) -> Any:
        """Return the JSON of the answer; ``missing``, where given, if there is no such job."""
        status, answer = self.call(method, path, body)
        if status == 404 and missing is not None:
            return missing
        if status >= 400:
            raise DemoError(f"{method} {path} was answered with {status}: {answer}")
        return answer


def _by(name: str, receiver: FakeWeb) -> dict[str, list[Call]]:
    """Return the calls that have arrived by what they say under this name."""
    found: dict[str, list[Call]] = defaultdict(list)
    for call in list(receiver.calls):
        found[call.body[name]].append(call)
    return found


def _path(topic: str, job_id: str) -> str:
    return f"/v1/topics/{topic}/jobs/{job_id}"


# First: close an order, unless it is paid before

ORDERS: Final = 400
PAID_SHARE: Final = 0.6
PAYERS: Final = 4
# How long a call may take from the claim to the receiver.
UNDER_WAY: Final = 2.0


class Orders:
    """Adds a job for each order; payments delete theirs, the receiver closes the others."""

    def __init__(self, client: Jobs, receiver: FakeWeb, dice: random.Random) -> None:
        self._client, self._receiver, self._dice = client, receiver, dice
        self.run_at: dict[str, float] = {}
        self.paid_at: dict[str, float] = {}

    def begin(self, clients: Threads) -> None:
        """Add all jobs with one call, and let customers pay some, most before their deadline."""
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
        """Return whether it came after the DELETE; of one that was due it may be under way."""
        paid_at = self.paid_at.get(order, float("inf"))
        return call.arrived_at > paid_at + (UNDER_WAY if self.run_at[order] <= paid_at else 0)

    def checks(self) -> Iterator[Check]:
        calls = _by("order", self._receiver)
        lost = self.run_at.keys() - calls.keys() - self.paid_at.keys()
        yield none_of("orders lost", lost, f"{len(self.paid_at)} paid, {len(calls)} closed")
        twice = [order for order, some in calls.items() if len(some) > 1]
        yield none_of("closed twice", twice, "one call for each order")
        first = {order: some[0] for order, some in calls.items()}
        early = [order for order, call in first.items() if call.arrived_at < self.run_at[order]]
        yield none_of("closed early", early, "never before its time")
        after = [order for order, some in calls.items() if self._is_late(order, some[-1])]
        yield none_of("called after DELETE", after, "never, unless the call was under way")


# Second: look after a refund until it is through, by consumers that pop

REFUNDS: Final = 40
CONSUMERS: Final = 3
AGAIN_AFTER: Final = 1.0
MOST_LOOKS: Final = 5


class Refunds:
    """Consumers wait for jobs, ask the bank, and release what is to be asked about again."""

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
        yield none_of("refunds lost", lost, f"{len(self.finished)} finished")
        extra = [name for name, looks in self.looks.items() if len(looks) != self._needed[name]]
        yield none_of("extra looks", extra, "each popped by one consumer at a time")
        hasty = [
            name
            for name, looks in self.looks.items()
            if any(after - before < AGAIN_AFTER for before, after in pairwise(looks))
        ]
        yield none_of("hasty looks", hasty, f"never sooner than {AGAIN_AFTER:.0f} s after the last")


# Third: tell another system how a payment ended, in steps until it has heard

PAYMENTS: Final = 80
LADDER: Final = "1s 1s 2s 3s"
ATTEMPTS: Final = 5
DEAF: Final = 6
# By turns of the host, which opens its circuit breaker, and of this call alone, which closes it:
# of a host that only fails, each further call waits twice as long.
FAULTS: Final = (("500", "503 2", "reset", "hang"), ("302", "404"))
# The clocks of the receiver and of the queue are the same, but an answer takes its way.
TRAVEL_SECONDS: Final = 0.05


class Upstreams:
    """Payments told by a ladder that is shortened to seconds; some upstreams are deaf at first."""

    def __init__(self, client: Jobs, receiver: FakeWeb, dice: random.Random) -> None:
        self._client, self._receiver, self._dice = client, receiver, dice
        # How the upstream of each payment fails before it listens.
        self.faults: dict[str, list[str]] = {}
        self.kicked = 0
        receiver.rule = self._answer

    def begin(self, clients: Threads) -> None:
        """Add the jobs, each with an upstream that fails so many times in its own way."""
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
        """Return whether the jobs of all that are deaf have used up their attempts."""
        calls = _by("payment", self._receiver)
        return all(
            len(calls[each]) >= ATTEMPTS
            and self._client.ask("GET", _path(UPSTREAMS_TOPIC, each))["state"] == "dead"
            for each in list(self.faults)[:DEAF]
        )

    def mend(self) -> None:
        """Have all upstreams listen from now on, and kick the jobs."""
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
        # What the API lists, against the calls that arrived.
        name, calls = max(_by("payment", self._receiver).items(), key=lambda each: len(each[1]))
        answer = self._client.ask("GET", f"/v1/attempts?topic={UPSTREAMS_TOPIC}&job={name}")
        listed = len(answer["items"])
        said = f"{listed} of {name}, {len(calls)} arrived"
        yield Check("attempts listed", listed == len(calls), said)

    def checks_of_calls(self) -> Iterator[Check]:
        """Yield what the calls alone must show."""
        calls, told = _by("payment", self._receiver), self._told()
        yield none_of("untold", self.faults.keys() - set(told), f"{len(told)} heard in the end")
        yield none_of("told again", repeated(told), "a 2xx ends the ladder")
        hasty = [name for name, some in calls.items() if _is_hasty(some)]
        said = f"waits of {LADDER}, or Retry-After, after each failure's end"
        yield none_of("hasty calls", hasty, said)
        # A kicked job is offered anew, and so is its webhook-id.
        ids = {name: {each.id for each in some[:ATTEMPTS]} for name, some in calls.items()}
        renamed = [name for name, found in ids.items() if len(found) > 1]
        yield none_of("renamed calls", renamed, "one webhook-id for all attempts of a job")
        said = f"{self.kicked} of {DEAF} deaf upstreams"
        yield Check("dead, then kicked", self.kicked == DEAF, said)


def _is_hasty(calls: Sequence[Call]) -> bool:
    """Return whether a call came sooner than Retry-After, or else the ladder, says."""
    rungs = [each.total_seconds() for each in RetryPolicy.ladder(LADDER).delays]
    return any(
        after.arrived_at - before.answered_at
        < float(before.answer.partition(" ")[2] or rung) - TRAVEL_SECONDS
        for (before, after), rung in zip(pairwise(calls[:ATTEMPTS]), rungs, strict=False)
    )
