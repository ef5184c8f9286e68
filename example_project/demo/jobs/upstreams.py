"""The third: tell another system how a payment ended, in steps until it has heard."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any, Final

from delayed_queue.retries import RetryPolicy
from example_project.demo.acts import Check, none_of
from example_project.demo.jobs.client import JobsClient
from example_project.demo.jobs.receiver import Call, Receiver

TOPIC: Final = "notify-upstream"
PATH: Final = "/payments/settled"
PAYMENTS: Final = 80
LADDER: Final = "1s 1s 2s 3s"
ATTEMPTS: Final = 5
DEAF: Final = 6
FAULTS: Final = ("500", "503 2", "302", "reset", "hang", "404")
# The clocks of the receiver and of the queue are the same, but an answer takes its way.
TRAVEL_SECONDS: Final = 0.05


@dataclass(slots=True)
class Upstreams:
    """Payments told by a ladder that is shortened to seconds; some upstreams are deaf at first."""

    client: JobsClient
    receiver: Receiver
    dice: random.Random
    kicked: int = 0
    _faults: dict[str, list[str]] = field(default_factory=dict)
    _are_mended: bool = False

    def begin(self) -> None:
        """Add the jobs, each with an upstream that fails so many times in its own way."""
        self.receiver.answer(PATH, self._answer)
        for number in range(PAYMENTS):
            payment = f"payment-{number:02}"
            times = ATTEMPTS if number < DEAF else self.dice.choice((0, 0, 0, 1, 2, 3))
            self._faults[payment] = self.dice.choices(FAULTS, k=times)
            self.client.add(
                jobId=payment, topic=TOPIC, ladder=LADDER, body={"payment": payment},
                url=self.receiver.url(PATH), delay=round(self.dice.uniform(0, 3), 3),
            )  # fmt: skip

    def _answer(self, body: Any, count: int) -> str:
        faults = self._faults[body["payment"]]
        return "200" if self._are_mended or count > len(faults) else faults[count - 1]

    def tend(self) -> bool:
        """Once the deaf ones are dead, mend them and kick their jobs; tell if so."""
        if self._are_mended or len(self._dead()) < DEAF:
            return False
        self._are_mended = True
        self.kicked = self.client.kick(TOPIC, 100)
        return True

    def _dead(self) -> list[str]:
        deaf = sorted(self._faults)[:DEAF]
        calls = self._calls()
        silent = [each for each in deaf if len(calls[each]) >= ATTEMPTS]
        return [each for each in silent if self.client.find(TOPIC, each)["state"] == "dead"]

    @property
    def is_done(self) -> bool:
        heard = {each.body["payment"] for each in self.receiver.calls_of(PATH) if each.succeeded}
        return len(heard) == PAYMENTS

    def _calls(self) -> dict[str, list[Call]]:
        found: dict[str, list[Call]] = defaultdict(list)
        for call in self.receiver.calls_of(PATH):
            found[call.body["payment"]].append(call)
        return found

    def rows(self) -> list[tuple[str, str]]:
        calls = self.receiver.calls_of(PATH)
        failed = sum(not each.succeeded for each in calls)
        return [
            ("upstreams", f"{PAYMENTS} payments told in {len(calls)} calls by the ladder {LADDER}"),
            ("", f"{failed} calls failed: {', '.join(sorted(set(map(_fault, calls)) - {''}))}"),
            ("", f"{self.kicked} dead after {ATTEMPTS} attempts, kicked when mended, then told"),
        ]

    def figures(self) -> dict[str, Any]:
        calls = self.receiver.calls_of(PATH)
        return {
            "payments": PAYMENTS,
            "told": sum(each.succeeded for each in calls),
            "calls": len(calls),
            "kicked": self.kicked,
        }

    def checks(self) -> list[Check]:
        return [*self.checks_of_calls(), self._logged(self._calls())]

    def checks_of_calls(self) -> list[Check]:
        """Return what the calls alone must show."""
        by_payment = self._calls()
        untold = sorted(
            name for name in self._faults if not any(each.succeeded for each in by_payment[name])
        )
        again = sorted(name for name, calls in by_payment.items() if sum(_good(calls)) > 1)
        hasty = sorted(name for name, calls in by_payment.items() if _is_hasty(calls))
        # A kicked job is offered anew, and so is its webhook-id.
        renamed = sorted(
            name
            for name, calls in by_payment.items()
            if len({each.webhook_id for each in calls[:ATTEMPTS]}) > 1
        )
        return [
            none_of("untold", untold, f"{PAYMENTS} heard in the end"),
            none_of("told again", again, "a 2xx ends the ladder"),
            none_of(
                "hasty calls", hasty, f"waits of {LADDER}, or Retry-After, after each failure's end"
            ),
            none_of("renamed calls", renamed, "one webhook-id for all attempts of a job"),
            Check(
                "dead, then kicked", self.kicked == DEAF, f"{self.kicked} of {DEAF} deaf upstreams"
            ),
        ]

    def _logged(self, by_payment: dict[str, list[Call]]) -> Check:
        """Compare the attempts that the API lists with the calls that arrived."""
        name = max(by_payment, key=lambda each: len(by_payment[each]))
        listed = self.client.attempts(TOPIC, name)["items"]
        calls = len(by_payment[name])
        return Check(
            "attempts listed", len(listed) == calls, f"{len(listed)} of {name}, {calls} arrived"
        )


def _fault(call: Call) -> str:
    return "" if call.succeeded else call.answer.partition(" ")[0]


def _good(calls: Iterable[Call]) -> list[bool]:
    return [each.succeeded for each in calls]


def _is_hasty(calls: list[Call]) -> bool:
    rungs = RetryPolicy.ladder(LADDER).delays
    return any(
        after.arrived_at - before.answered_at < _wait_after(before, rung) - TRAVEL_SECONDS
        for (before, after), rung in zip(pairwise(calls[:ATTEMPTS]), rungs, strict=False)
    )


def _wait_after(call: Call, rung: timedelta) -> float:
    """Return the seconds that the answer asks for by Retry-After, or else those of the ladder."""
    asked = call.answer.partition(" ")[2]
    return float(asked) if asked else rung.total_seconds()
