"""The act of the jobs: a client that knows only HTTP, and the services whose urls are called."""

from __future__ import annotations

import io
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, Final
from urllib.parse import quote, urlencode

from django.core.management import call_command
from django.db import transaction

from delayed_queue import RetryPolicy
from delayed_queue.http.jobs.catalogue import forget_topics
from delayed_queue.http.jobs.kinds import MAX_SHARDS, kinds_of_topic
from delayed_queue.http.models import ApiToken, CallbackAttempt, Endpoint, Host, Topic
from delayed_queue.http.tokens import VERBS, create_token
from delayed_queue.models import DeadLetter, Message
from example_project.demo import acts
from example_project.demo.acts import Check, Client, Stage, State, Threads, none_of, repeated
from example_project.demo.fakes import Call, Receiver

ORDERS_TOPIC: Final = "close-order"
REFUNDS_TOPIC: Final = "poll-refund"
UPSTREAMS_TOPIC: Final = "notify-upstream"
TOPICS: Final = (ORDERS_TOPIC, REFUNDS_TOPIC, UPSTREAMS_TOPIC)
CLIENT: Final = "demo"
WORKERS: Final = 2
SEED: Final = 7


class JobsAct(acts.Act):
    """Orders closed, refunds polled, upstreams told."""

    name = "jobs"
    introduction = "asked for over HTTP: close orders, look after refunds, tell upstreams"

    @transaction.atomic
    def clear(self) -> None:
        """Delete the topics with their jobs and attempts, and what an earlier run set up."""
        kinds = [kind for topic in TOPICS for kind in kinds_of_topic(topic, MAX_SHARDS)]
        for model in (Message, DeadLetter):
            model.objects.filter(kind__in=kinds).delete()
        CallbackAttempt.objects.filter(topic__in=TOPICS).delete()
        Topic.objects.filter(name__in=TOPICS).delete()
        ApiToken.objects.filter(name=CLIENT).delete()
        Endpoint.objects.filter(origin__startswith="http://127.0.0.1:").delete()
        Host.objects.filter(name__startswith="127.0.0.1:").delete()
        forget_topics()

    def prepare(self, stage: Stage) -> None:
        """Open the receivers, and allow calls to them: they are at private addresses."""
        self._receivers = [stage.enter(Receiver()) for _ in range(2)]
        stage.allow_calls(*(each.port for each in self._receivers))
        # For half a minute nobody wants to watch.
        stage.environment["CALLBACK_BREAKER_PAUSE"] = "1"

    def run(self, stage: Stage) -> acts.Outcome:
        """Run the three scenarios side by side."""
        token = create_token(CLIENT, verbs=VERBS, topics=TOPICS)
        client, dice = Jobs(f"{stage.web}/queue", token), random.Random(SEED)  # noqa: S311 # the same run each time, not security
        for each in self._receivers:
            each.secret = _secret_for(each)
        shop, upstream = self._receivers
        workers = stage.start_workers(WORKERS, "worker", "--callbacks-only")
        orders, refunds = Orders(client, shop, dice), Refunds(client, dice)
        upstreams = Upstreams(client, upstream, dice)
        with Threads() as clients:

            def state() -> State:
                _ = clients.are_done  # or one has failed
                told = len(upstreams.calls())
                text = f"{len(orders.calls())} orders closed, {len(orders.paid_at)} paid; "
                text += f"{len(refunds.finished)} refunds through; upstreams called {told} times"
                return text, text

            for part in (orders, refunds, upstreams):
                part.begin(clients)
            stage.wait(upstreams.are_dead, state)
            upstreams.mend()
            stage.wait(lambda: orders.is_done and refunds.is_done and upstreams.is_done, state)
        checks = [*orders.checks(), *refunds.checks(), *upstreams.checks()]
        unsigned = sum(each.unsigned for each in self._receivers)
        checks.append(Check(f"unsigned {unsigned}", not unsigned, "every call had a signature"))
        checks.append(acts.stopped(stage.stop(workers)))
        calls, looks = upstreams.calls(), sum(map(len, refunds.looks.values()))
        failed = [each.answer.split()[0] for each in calls if not each.succeeded]
        figures = {
            "orders": ORDERS, "paid": len(orders.paid_at), "closed": len(orders.calls()),
            "refunds_through": len(refunds.finished), "looks": looks,
            "told": len(calls) - len(failed), "calls": len(calls), "failed": len(failed),
            "faults": ", ".join(sorted(set(failed))), "kicked": upstreams.kicked,
        }  # fmt: skip
        return acts.Outcome(
            figures, [(name, text.format(**figures)) for name, text in _ROWS], checks
        )


_ROWS: Final = (
    ("paid", "{paid:>7,}  of {orders:,} orders in time, their jobs deleted"),
    ("closed", "{closed:>7,}  by a call of their url"),
    ("refunds", "{refunds_through:>7,}  through after {looks} looks"),
    ("upstreams", "{told:>7,}  told in {calls} calls, {failed} of which failed by {faults}"),
    ("kicked", "{kicked:>7,}  dead letters, whose upstreams were mended"),
)


def _secret_for(receiver: Receiver) -> str:
    """Register the receiver as an operator does; return the secret that is shown once."""
    said = io.StringIO()
    call_command("queueendpoint", "add", receiver.at("/"), stdout=said, stderr=io.StringIO())
    return said.getvalue().split()[-1]


class Jobs(Client):
    """The calls of the job API; each returns the answer's JSON."""

    def ask(self, method: str, path: str, body: object = None) -> Any:
        status, answer = self.call(method, path, body)
        if status >= 400:
            raise acts.DemoError(f"{method} {path} was answered with {status}: {answer}")
        return answer

    def delete(self, topic: str, job_id: str) -> bool:
        """Delete the job; False if there is none any more."""
        status, answer = self.call("DELETE", _path(topic, job_id))
        if status not in (204, 404):
            raise acts.DemoError(f"DELETE was answered with {status}: {answer}")
        return status == 204

    def settle(self, verb: str, topic: str, job: dict[str, Any], **more: Any) -> None:
        lease = {"leaseToken": job["leaseToken"], **more}
        self.ask("POST", f"{_path(topic, job['jobId'])}/{verb}", lease)


def _path(topic: str, job_id: str) -> str:
    return f"/v1/topics/{quote(topic, safe='')}/jobs/{quote(job_id, safe='')}"


# First: close an order, unless it is paid before

ORDERS_PATH: Final = "/orders/close"
ORDERS: Final = 400
PAID_SHARE: Final = 0.6
PAYERS: Final = 4
# How long a call may take from the claim to the receiver.
UNDER_WAY: Final = 2.0


@dataclass(slots=True)
class Orders:
    """Adds a job for each order; payments delete theirs, the receiver closes the others."""

    client: Jobs
    receiver: Receiver
    dice: random.Random
    run_at: dict[str, float] = field(default_factory=dict)
    paid_at: dict[str, float] = field(default_factory=dict)

    def begin(self, clients: Threads) -> None:
        """Add all jobs with one call, and let customers pay some, most before their deadline."""
        self.receiver.rules[ORDERS_PATH] = lambda body, count: "204"
        jobs = [self._job(f"order-{number:03}") for number in range(ORDERS)]
        for answer in self.client.ask("POST", "/v1/jobs/bulk", jobs)["items"]:
            added = answer["job"]
            self.run_at[added["jobId"]] = datetime.fromisoformat(added["runAt"]).timestamp()
        paying = self.dice.sample(sorted(self.run_at), round(ORDERS * PAID_SHARE))
        now = time.time()
        times = sorted((self.dice.uniform(now, self.run_at[each] + 0.1), each) for each in paying)
        for start in range(PAYERS):
            clients.play(self._pay, times[start::PAYERS])

    def _job(self, order_id: str) -> dict[str, Any]:
        return {
            "jobId": order_id, "topic": ORDERS_TOPIC, "url": self.receiver.at(ORDERS_PATH),
            "delay": round(self.dice.uniform(3, 13), 3), "body": {"order": order_id},
        }  # fmt: skip

    def _pay(self, order_id: str) -> None:
        if self.client.delete(ORDERS_TOPIC, order_id):
            self.paid_at[order_id] = time.time()

    def calls(self) -> list[tuple[str, float]]:
        """Return which orders were closed by a call, and when it arrived."""
        calls = self.receiver.calls_of(ORDERS_PATH)
        return [(each.body["order"], each.arrived_at) for each in calls]

    @property
    def is_done(self) -> bool:
        return len(dict(self.calls()) | self.paid_at) == len(self.run_at)

    def _last_call_at(self, order_id: str) -> float:
        """Return when the call of an order may arrive at the latest: at its DELETE, if that was.

        Of one that was due by then the call may have been under way.
        """
        paid_at = self.paid_at.get(order_id, float("inf"))
        return paid_at + (UNDER_WAY if self.run_at[order_id] <= paid_at else 0)

    def checks(self) -> Iterator[Check]:
        calls = self.calls()
        closed = [order for order, _ in calls]
        lost = self.run_at.keys() - set(closed) - self.paid_at.keys()
        yield none_of("orders lost", lost, f"{len(self.paid_at)} paid, {len(calls)} closed")
        yield none_of("closed twice", repeated(closed), "one call for each order")
        early = [order for order, at in calls if at < self.run_at[order]]
        yield none_of("closed early", early, "never before its time")
        after = [order for order, at in calls if at > self._last_call_at(order)]
        yield none_of("called after DELETE", after, "never, unless the call was under way")


# Second: look after a refund until it is through, by consumers that pop

REFUNDS: Final = 40
CONSUMERS: Final = 3
AGAIN_AFTER: Final = 1.0
MOST_LOOKS: Final = 5
POP: Final = f"/v1/topics/{REFUNDS_TOPIC}/pop?count=2&timeout=2"


@dataclass(slots=True)
class Refunds:
    """Consumers wait for jobs, ask the bank, and release what is to be asked about again."""

    client: Jobs
    dice: random.Random
    looks: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    finished: list[str] = field(default_factory=list)
    needed: dict[str, int] = field(default_factory=dict)

    def begin(self, clients: Threads) -> None:
        """Start the consumers, which wait, and then add the jobs."""
        for _ in range(CONSUMERS):
            clients.start(self._consume, clients.over)
        for refund in (f"refund-{number:02}" for number in range(REFUNDS)):
            self.needed[refund] = self.dice.randint(1, MOST_LOOKS)
            job = {"jobId": refund, "topic": REFUNDS_TOPIC, "body": {"refund": refund}}
            self.client.ask("POST", "/v1/jobs", job)

    def _consume(self, over: threading.Event) -> None:
        while not over.is_set():
            for job in self.client.ask("POST", POP) or []:
                refund = job["body"]["refund"]
                self.looks[refund].append(time.time())
                if len(self.looks[refund]) < self.needed[refund]:
                    self.client.settle("release", REFUNDS_TOPIC, job, delay=AGAIN_AFTER)
                else:
                    self.client.settle("finish", REFUNDS_TOPIC, job)
                    self.finished.append(refund)

    @property
    def is_done(self) -> bool:
        return len(self.finished) >= REFUNDS

    def checks(self) -> Iterator[Check]:
        lost = self.needed.keys() - set(self.finished)
        yield none_of("refunds lost", lost, f"{len(self.finished)} finished")
        extra = [name for name, looks in self.looks.items() if len(looks) != self.needed[name]]
        yield none_of("extra looks", extra, "each popped by one consumer at a time")
        hasty = [
            name
            for name, looks in self.looks.items()
            if any(after - before < AGAIN_AFTER for before, after in pairwise(looks))
        ]
        yield none_of("hasty looks", hasty, f"never sooner than {AGAIN_AFTER:.0f} s after the last")


# Third: tell another system how a payment ended, in steps until it has heard

UPSTREAMS_PATH: Final = "/payments/settled"
PAYMENTS: Final = 80
LADDER: Final = "1s 1s 2s 3s"
ATTEMPTS: Final = 5
DEAF: Final = 6
# By turns of the host, which opens its circuit breaker, and of this call alone, which closes it:
# of a host that only fails, each further call waits twice as long.
FAULTS: Final = (("500", "503 2", "reset", "hang"), ("302", "404"))
# The clocks of the receiver and of the queue are the same, but an answer takes its way.
TRAVEL_SECONDS: Final = 0.05


@dataclass(slots=True)
class Upstreams:
    """Payments told by a ladder that is shortened to seconds; some upstreams are deaf at first."""

    client: Jobs
    receiver: Receiver
    dice: random.Random
    kicked: int = 0
    faults: dict[str, list[str]] = field(default_factory=dict)
    are_mended: bool = False

    def begin(self, clients: Threads) -> None:
        """Add the jobs, each with an upstream that fails so many times in its own way."""
        self.receiver.rules[UPSTREAMS_PATH] = self._answer
        for number in range(PAYMENTS):
            payment = f"payment-{number:02}"
            times = ATTEMPTS if number < DEAF else self.dice.choice((0, 0, 0, 1, 2, 3))
            self.faults[payment] = [self.dice.choice(FAULTS[turn % 2]) for turn in range(times)]
            job = {
                "jobId": payment, "topic": UPSTREAMS_TOPIC, "ladder": LADDER,
                "body": {"payment": payment}, "url": self.receiver.at(UPSTREAMS_PATH),
                "delay": round(self.dice.uniform(0, 3), 3),
            }  # fmt: skip
            self.client.ask("POST", "/v1/jobs", job)

    def _answer(self, body: Any, count: int) -> str:
        faults = self.faults[body["payment"]]
        return "200" if self.are_mended or count > len(faults) else faults[count - 1]

    def are_dead(self) -> bool:
        """Return whether the jobs of all that are deaf have used up their attempts."""
        calls, deaf = self._by_payment(), sorted(self.faults)[:DEAF]
        paths = [_path(UPSTREAMS_TOPIC, each) for each in deaf]
        return all(len(calls[each]) >= ATTEMPTS for each in deaf) and all(
            self.client.ask("GET", path)["state"] == "dead" for path in paths
        )

    def mend(self) -> None:
        self.are_mended = True
        answer = self.client.ask("POST", f"/v1/topics/{UPSTREAMS_TOPIC}/kick?limit=100")
        self.kicked = int(answer["kicked"])

    def calls(self) -> list[Call]:
        return self.receiver.calls_of(UPSTREAMS_PATH)

    def _by_payment(self) -> dict[str, list[Call]]:
        found: dict[str, list[Call]] = defaultdict(list)
        for call in self.calls():
            found[call.body["payment"]].append(call)
        return found

    @property
    def is_done(self) -> bool:
        return len({each.body["payment"] for each in self.calls() if each.succeeded}) == PAYMENTS

    def checks(self) -> Iterator[Check]:
        yield from self.checks_of_calls()
        # What the API lists, against the calls that arrived.
        name, calls = max(self._by_payment().items(), key=lambda each: len(each[1]))
        query = urlencode({"topic": UPSTREAMS_TOPIC, "job": name})
        listed = len(self.client.ask("GET", f"/v1/attempts?{query}")["items"])
        said = f"{listed} of {name}, {len(calls)} arrived"
        yield Check("attempts listed", listed == len(calls), said)

    def checks_of_calls(self) -> Iterator[Check]:
        """Yield what the calls alone must show."""
        calls = self._by_payment()
        told = [each.body["payment"] for each in self.calls() if each.succeeded]
        yield none_of("untold", self.faults.keys() - set(told), f"{len(told)} heard in the end")
        yield none_of("told again", repeated(told), "a 2xx ends the ladder")
        hasty = [name for name, some in calls.items() if _is_hasty(some)]
        said = f"waits of {LADDER}, or Retry-After, after each failure's end"
        yield none_of("hasty calls", hasty, said)
        # A kicked job is offered anew, and so is its webhook-id.
        ids = {name: {each.webhook_id for each in calls[name][:ATTEMPTS]} for name in calls}
        renamed = [name for name, found in ids.items() if len(found) > 1]
        yield none_of("renamed calls", renamed, "one webhook-id for all attempts of a job")
        said = f"{self.kicked} of {DEAF} deaf upstreams"
        yield Check("dead, then kicked", self.kicked == DEAF, said)


def _is_hasty(calls: list[Call]) -> bool:
    """Return whether a call came sooner than Retry-After, or else the ladder, says."""
    rungs = [each.total_seconds() for each in RetryPolicy.ladder(LADDER).delays]
    return any(
        after.arrived_at - before.answered_at
        < float(before.answer.partition(" ")[2] or rung) - TRAVEL_SECONDS
        for (before, after), rung in zip(pairwise(calls[:ATTEMPTS]), rungs, strict=False)
    )
