"""What must hold at the end of the act: counted twice, by the pipeline and by the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from example_project.demo.acts import Check, none_of
from example_project.demo.pipeline.evidence import Archived, Before
from example_project.notifications.models import OPEN_STATUSES, Status
from example_project.shop import vouchers

PARTS: Final = ("created", "updated", "ignored", "duplicates", "quarantined")


@dataclass(frozen=True, slots=True)
class Facts:
    """The answers of the commands, and what was counted beside them."""

    lines: int
    campaign: dict[str, Any]
    again: dict[str, Any]
    vouchers: dict[str, Any]
    records: int
    before: Before
    expired: Counter[str]
    archives: Sequence[Archived]
    report: dict[str, Any]
    plots: Sequence[str] = field(default_factory=tuple)


def checks(facts: Facts) -> list[Check]:
    """Return all that must hold."""
    return [
        _adds_up("campaign", facts.campaign, facts.lines),
        _adds_up("vouchers", facts.vouchers, facts.records),
        _ended(facts),
        _changed_nothing(facts),
        *_vouchers(facts),
        *(_archived(each) for each in facts.archives),
        _report(facts),
        Check(f"plots {len(facts.plots)}", bool(facts.plots), "drawn by the report"),
    ]


def _adds_up(name: str, answer: dict[str, Any], lines: int) -> Check:
    parts = {part: answer[part] for part in PARTS}
    said = ", ".join(f"{count:,} {part}" for part, count in parts.items() if count)
    is_whole = sum(parts.values()) == answer["input"] == lines
    return Check(f"{name} adds up", is_whole, f"{lines:,} records: {said}")


def _ended(facts: Facts) -> Check:
    """Each row that was stored is a notification in a final state; only suppressed ones unsent."""
    open_ones = _of(facts.before.notifications, *OPEN_STATUSES)
    ended = facts.before.notifications.total() - open_ones
    created = facts.campaign["created"]
    sent = _of(facts.before.notifications, Status.SUCCESSFULLY_PROCESSED)
    cancelled = _of(facts.before.notifications, Status.CANCELLED)
    statement = f"{created:,} stored, {sent:,} sent, {cancelled:,} suppressed"
    passed = not open_ones and ended == created == sent + cancelled
    return Check(f"campaign open {open_ones}", passed, statement)


def _of(counts: Counter[tuple[str, str]], *statuses: str) -> int:
    return sum(count for (_, status), count in counts.items() if status in statuses)


def _changed_nothing(facts: Facts) -> Check:
    again, first = facts.again, facts.campaign
    same = ("input", "duplicates", "quarantined")
    passed = (
        not again["created"]
        and not again["updated"]
        and again["ignored"] == first["created"] + first["ignored"]
        and all(again[name] == first[name] for name in same)
    )
    statement = f"{again['created']:,} created, {again['ignored']:,} were there"
    return Check("imported again", passed, statement)


def _vouchers(facts: Facts) -> list[Check]:
    offered, dead = facts.vouchers["created"], facts.before.dead
    twice = sorted(number for number, count in facts.expired.items() if count > 1)
    lost = offered - len(facts.expired) - dead
    statement = f"{offered:,} offered, {len(facts.expired):,} expired, {dead:,} dead letters"
    return [
        Check(f"vouchers lost {lost}", not lost, statement),
        none_of("expired twice", twice, "one row for each voucher"),
    ]


def _archived(found: Archived) -> Check:
    """As many rows in the files as deleted, by checksums of our own; none left, none more."""
    same = found.expected == found.rows == found.deleted == found.in_files
    passed = same and not (found.left or found.wrong_files or found.unfinished)
    statement = (
        f"{found.in_files:,} rows in files, {found.deleted:,} deleted, {found.left:,} left; "
        + (
            f"not as written: {', '.join(found.wrong_files)}"
            if found.wrong_files
            else "checksums hold"
        )
    )
    return Check(f"archived {found.source.removeprefix('delayed_queue_')}", passed, statement)


def expected_kinds(before: Before) -> dict[str, tuple[int, int]]:
    """Return how many ended and how many of them well, by what the report calls a kind."""
    kinds: dict[str, tuple[int, int]] = {vouchers.kind: (before.dead, 0)} if before.dead else {}
    for channel in {channel for channel, _ in before.notifications}:
        counts = {status: n for (of, status), n in before.notifications.items() if of == channel}
        done = counts.get(Status.SUCCESSFULLY_PROCESSED, 0)
        kinds[channel] = (sum(counts.values()), done)
    return kinds


def _report(facts: Facts) -> Check:
    said = {each["kind"]: (each["messages"], each["done"]) for each in facts.report["kinds"]}
    wanted = expected_kinds(facts.before)
    wrong = sorted(kind for kind, counts in wanted.items() if said.get(kind) != counts)
    statement = ", ".join(f"{kind} {ended:,}" for kind, (ended, _) in sorted(wanted.items()))
    return none_of("report wrong", wrong, f"{statement}: as counted in the database")
