"""The evidence as lines for people and as JSON values for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from example_project.demo.notifications.evidence import Evidence
from example_project.demo.notifications.figures import Row, Waits
from example_project.demo.notifications.traffic import Way, reasons
from example_project.notifications.models import Channel, Status
from example_project.notifications.services import IN_DOUBT

SHOWN_REASONS: Final = 8
UNITS: Final = {Channel.EMAIL: "mails", Channel.SMS: "texts", Channel.WEBHOOK: "webhooks"}
SECOND_PROVIDER: Final = "sms-second"


def rows(found: Evidence) -> Iterator[tuple[str, str]]:
    """Yield the lines of the report, each with its name."""
    yield "input", f"{found.traffic.count:,} requests, asked for in {found.traffic.seconds:.0f} s"
    yield from _accepted(found)
    yield from _refused(found)
    yield from _ends(found)
    yield from _speed(found)
    yield "killed", f"dispatcher {found.killed}" if found.killed else "nobody"
    yield "took", f"{found.seconds:.0f} s"


def _accepted(found: Evidence) -> Iterator[tuple[str, str]]:
    ways = {way: found.accepted(way) for way in Way}
    total = sum(ways.values())
    more = total - len(found.rows)
    again = f", {more:,} of them for the second time: nothing was stored" if more else ""
    yield "accepted", f"{total:>7,}  requests{again}"
    for way, count in ways.items():
        yield "", f"{count:>7,}  {way.value}"


def _refused(found: Evidence) -> Iterator[tuple[str, str]]:
    why = reasons(found.refused)
    yield "refused", f"{len(found.refused):>7,}  requests, in {len(why)} ways"
    for reason, count in why.most_common(SHOWN_REASONS):
        yield "", f"{count:>7,}  {reason}"
    if len(why) > SHOWN_REASONS:
        yield "", f"{sum(why.values()) - sum(n for _, n in why.most_common(SHOWN_REASONS)):>7,}  …"


def _ends(found: Evidence) -> Iterator[tuple[str, str]]:
    ended = found.rows.values()
    sent = [row for row in ended if row.is_sent]
    channels = Counter(row.channel for row in sent)
    parts = ", ".join(f"{channels[channel]:,} {unit}" for channel, unit in UNITS.items())
    yield "sent", f"{len(sent):>7,}  {parts}"
    counts = _counts(found)
    yield "failed over", f"{counts['failed_over']:>7,}  texts, sent by the second provider"
    yield "retried", f"{counts['retried']:>7,}  notifications, in more than one attempt"
    yield "expired", f"{counts['expired']:>7,}  too late to be sent, so they were not"
    yield "cancelled", f"{counts['cancelled']:>7,}  by their sender before they were due"
    yield "suppressed", f"{counts['suppressed']:>7,}  to recipients who had opted out"
    yield "failed", f"{counts['failed']:>7,}  {_outcomes(found)}".rstrip()
    yield "in doubt", f"{counts['doubtful']:>7,}  {_doubts(counts)}"


def _doubts(counts: dict[str, int]) -> str:
    return (
        f"whose answer was lost; {counts['doubtful_sent']:,} were asked for again under the same "
        "key, and sent once"
    )


def _outcomes(found: Evidence) -> str:
    failed = (row.outcome for row in found.rows.values() if row.status == Status.FAILED)
    return ", ".join(f"{count:,} {outcome}" for outcome, count in Counter(failed).most_common())


def _speed(found: Evidence) -> Iterator[tuple[str, str]]:
    sent = sum(row.is_sent for row in found.rows.values())
    yield (
        "throughput",
        f"{sent / found.seconds:,.0f}/s, {found.busiest_second:,} in the best second",
    )
    yield "claimed after", f"{_waited(found.waits['all'])} from when it was enqueued, or due"
    yield "", f"{_waited(found.waits['urgent, campaign'])}: urgent ones, during the campaign"


def _waited(waits: Waits) -> str:
    return f"p50 {waits.p50:,.0f} ms, p99 {waits.p99:,.0f} ms of {waits.count:,}"


def _counts(found: Evidence) -> dict[str, int]:
    ended = list(found.rows.values())
    doubtful = [row for row in ended if row.is_doubtful]
    return {
        "failed_over": sum(row.is_sent and row.provider == SECOND_PROVIDER for row in ended),
        "retried": sum(row.attempts > 1 for row in ended),
        "expired": sum(row.status == Status.EXPIRED for row in ended),
        "cancelled": sum(map(_is_cancelled, ended)),
        "suppressed": sum(row.outcome == "suppressed" for row in ended),
        "failed": sum(row.status == Status.FAILED for row in ended),
        "in_doubt": sum(row.outcome == IN_DOUBT for row in ended),
        "doubtful": len(doubtful),
        "doubtful_sent": sum(row.is_sent for row in doubtful),
    }


def _is_cancelled(row: Row) -> bool:
    return row.status == Status.CANCELLED and row.outcome != "suppressed"


def as_json(found: Evidence) -> dict[str, Any]:
    """Return the report as JSON values; waits in milliseconds."""
    sent = Counter(row.channel for row in found.rows.values() if row.is_sent)
    return {
        "requests": found.traffic.count,
        "accepted": {way.name.lower(): found.accepted(way) for way in Way},
        "stored": len(found.rows),
        "refused": len(found.refused),
        "refusals": dict(reasons(found.refused).most_common()),
        "sent": {channel.value: sent[channel] for channel in Channel},
        **_counts(found),
        "waits_ms": {name: asdict(waits) for name, waits in found.waits.items()},
        "busiest_second": found.busiest_second,
        "seconds": found.seconds,
    }
