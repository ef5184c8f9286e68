"""What everybody saw: who asked, the table, and the strangers at the other end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from example_project.demo.jobs.receiver import is_signed
from example_project.demo.notifications import figures
from example_project.demo.notifications.broker import QUEUE
from example_project.demo.notifications.campaign import Counts, reason_of
from example_project.demo.notifications.figures import Row, Waits
from example_project.demo.notifications.posting import Posting, number_of
from example_project.demo.notifications.strangers import Strangers
from example_project.demo.notifications.traffic import (
    TENANTS,
    Answer,
    Traffic,
    Way,
)
from example_project.demo.notifications.trouble import Trouble
from example_project.notifications.channels import signing_secrets
from example_project.notifications.models import Channel, ParkedRequest
from example_project.notifications.parking import Tally


@dataclass(slots=True)
class Witness:
    """What one stranger accepted: how often each notification, and when it came, in Unix time."""

    accepted: Mapping[str, int] = field(default_factory=dict)
    began_at: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Parked:
    """A broker's message that was parked: its sample's number, how often, and why."""

    number: int
    times: int
    reasons: tuple[str, ...]


@dataclass(slots=True)
class Evidence:
    """All of it, gathered when everything had come to its end."""

    traffic: Traffic
    rows: Mapping[str, Row]
    answers: Sequence[Answer]
    published: int
    tally: Tally
    parked: Sequence[Parked]
    campaign: Counts
    cancelled: Sequence[str]
    surprises: Sequence[str]
    witnesses: Mapping[str, Sequence[Witness]]
    unsigned: int
    in_flight: set[str]
    unfinished: set[str]
    messages: int
    dead_letters: set[str]
    exit_codes: Sequence[int]
    waits: Mapping[str, Waits]
    busiest_second: int
    killed: str
    seconds: float

    @property
    def refused(self) -> list[Answer]:
        """Everything that was refused, by whichever way it had come."""
        parked = [Answer(each.number, Way.BROKER, reasons=each.reasons) for each in self.parked]
        return [each for each in self.answers if not each.id] + parked

    def accepted(self, way: Way) -> int:
        """Return how many requests of the way were accepted, duplicates included."""
        if way is Way.BROKER:
            return self.tally.accepted + self.tally.duplicates
        if way is Way.CAMPAIGN:
            return self.campaign.stored + self.campaign.duplicates
        return sum(bool(each.id) for each in self.answers if each.way is way)

    def of_tenant(self, tenant: str) -> list[Row]:
        return [row for row in self.rows.values() if row.tenant == tenant]

    def sightings(self) -> Iterator[tuple[str, str, int, float]]:
        """Yield channel, notification, how often and when for all that strangers accepted."""
        for channel, seen in self.witnesses.items():
            for witness in seen:
                for id_, times in witness.accepted.items():
                    yield channel, id_, times, witness.began_at.get(id_, 0.0)

    def seen(self) -> Counter[str]:
        """Return how often each notification was accepted by anyone."""
        found: Counter[str] = Counter()
        for _, id_, times, _ in self.sightings():
            found[id_] += times
        return found


def gather(
    posting: Posting, strangers: Strangers, trouble: Trouble, tally: Tally, codes: Sequence[int],
    seconds: float,
) -> Evidence:  # fmt: skip
    """Gather it; nothing may run any more."""
    killed, rows = trouble.killed, figures.rows()
    return Evidence(
        traffic=posting.traffic,
        rows=rows,
        answers=posting.answers,
        published=posting.published,
        tally=tally,
        parked=_parked(),
        campaign=posting.campaign,
        cancelled=posting.cancelled,
        surprises=posting.surprises,
        witnesses=_witnesses(strangers),
        unsigned=_unsigned(strangers),
        in_flight=trouble.in_flight,
        unfinished=figures.unfinished(),
        messages=figures.messages(),
        dead_letters=figures.dead_letters() & rows.keys(),
        exit_codes=codes,
        waits=_waits(posting),
        busiest_second=figures.busiest_second(),
        killed=f"{killed.pid} with SIGKILL after {trouble.killed_after:.0f} s" if killed else "",
        seconds=seconds,
    )


def _parked() -> list[Parked]:
    rows = ParkedRequest.objects.filter(origin=QUEUE).values_list("message_id", "times", "errors")
    return [
        Parked(number_of(id_), times, tuple(map(reason_of, errors))) for id_, times, errors in rows
    ]


def _witnesses(strangers: Strangers) -> dict[str, list[Witness]]:
    by_channel = {
        Channel.EMAIL: (strangers.mail,),
        Channel.SMS: strangers.texts,
        Channel.WEBHOOK: (strangers.partners,),
    }
    return {
        channel.value: [Witness(dict(each.accepted), dict(each.began_at)) for each in servers]
        for channel, servers in by_channel.items()
    }


def _unsigned(strangers: Strangers) -> int:
    [secret] = signing_secrets()
    calls = (
        ({name.lower(): value for name, value in headers.items()}, body)
        for headers, body in strangers.partners.requests
    )
    return sum(not is_signed(secret, headers, body) for headers, body in calls)


def _waits(posting: Posting) -> dict[str, Waits]:
    ended_at = figures.campaign_ended_at(TENANTS[Way.CAMPAIGN])
    return {
        "all": figures.waits(["urgent", "normal", "bulk"]),
        "urgent": figures.waits(["urgent"]),
        "urgent, campaign": figures.waits(["urgent"], posting.campaign_began_at, ended_at),
    }
