"""What must hold after the run, each check a plain statement about the evidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from typing import Final

from example_project.demo.acts import Check, none_of
from example_project.demo.notifications.evidence import Evidence
from example_project.demo.notifications.traffic import TENANTS, Answer, Way

# What a stranger sees a moment after the dispatcher looked at its clock.
TRAVEL_SECONDS: Final = 0.5
TOO_LATE: Final = "expiresAt: is in the past"


def check(found: Evidence) -> list[Check]:
    """Return every check; the run is good if all have passed."""
    return [*_of_intake(found), *_of_sending(found), *_of_processes(found)]


def _of_intake(found: Evidence) -> Iterator[Check]:
    refused = {each.number for each in found.refused}
    late = {each.number for each in found.refused if _is_late(found, each)}
    wrong = found.traffic.wrong
    statement = f"{len(wrong):,} of the file are wrong, {len(refused):,} were refused"
    too_late = f", {len(late)} of them as they had expired on the way" if late else ""
    yield none_of("wrong, accepted", sorted(wrong - refused), statement)
    yield none_of("right, refused", sorted(refused - wrong - late), statement + too_late)
    yield _parked(found)
    yield none_of("odd answers", found.surprises, "nothing but 202 and 400, to each request one")
    yield _stored(found, refused)


def _is_late(found: Evidence, answer: Answer) -> bool:
    """Tell if a code was refused because it had expired when its request arrived."""
    sample = found.traffic.by_number.get(answer.number)
    return bool(sample) and sample.kind == "code" and answer.reasons == (TOO_LATE,)  # type: ignore[union-attr]


def _parked(found: Evidence) -> Check:
    wrong = {each.number for each in found.traffic.samples[Way.BROKER] if each.kind == "wrong"}
    late = {
        each.number for each in found.refused if each.way is Way.BROKER and _is_late(found, each)
    }
    numbers = [each.number for each in found.parked]
    times = sum(each.times for each in found.parked)
    holds = (
        sorted(numbers) == sorted(wrong | late)
        and times == len(numbers)
        and sum(astuple(found.tally)) == found.published
    )
    return Check(
        "parked",
        holds,
        f"{times:,} of {found.published:,} published are parked, {len(wrong):,} of them wrong",
    )


def _stored(found: Evidence, refused: set[int]) -> Check:
    """Compare, for each tenant, the rows with the different requests that were accepted."""
    wanted = {
        tenant: found.traffic.distinct(
            each.number
            for way, samples in found.traffic.samples.items()
            for each in samples
            if TENANTS[way] == tenant and each.number not in refused
        )
        for tenant in set(TENANTS.values())
    }
    stored = {tenant: len(found.of_tenant(tenant)) for tenant in wanted}
    counts = f"{sum(stored.values()):,} stored, {sum(wanted.values()):,} different ones accepted"
    return Check("stored once", stored == wanted, counts)


def _of_sending(found: Evidence) -> Iterator[Check]:
    seen, rows = found.seen(), found.rows
    promised = {each.id for each in found.answers if each.id} | rows.keys()
    lost = sorted(id_ for id_ in promised if id_ not in rows or not rows[id_].is_final)
    yield none_of("lost", lost, f"{len(promised):,} accepted, each has come to an end")
    twice = sorted(id_ for id_, times in seen.items() if times > 1)
    doubtful = sum(row.is_doubtful for row in rows.values())
    yield none_of("sent twice", twice, f"though of {doubtful} one could not know whether they were")
    unseen = sorted(row.id for row in rows.values() if row.is_sent and not _saw(found, row.id))
    sent = sum(row.is_sent for row in rows.values())
    yield none_of("sent, not seen", unseen, f"{sent:,} SUCCESSFULLY_PROCESSED, each was received")
    yield _unrecorded(found)
    yield none_of("sent late", sorted(_late(found)), "nothing arrived after its expiresAt")
    unwanted = sorted(set(found.cancelled) & seen.keys())
    yield none_of("cancelled, sent", unwanted, f"{len(found.cancelled)} were cancelled with DELETE")
    yield Check("unsigned 0", found.unsigned == 0, "every webhook had a valid signature")


def _saw(found: Evidence, id_: str) -> bool:
    """Tell if the provider of its channel saw a notification."""
    channel = found.rows[id_].channel
    return any(id_ in witness.accepted for witness in found.witnesses[channel])


def _unrecorded(found: Evidence) -> Check:
    """Compare what arrived with the table; what is in doubt may have arrived or not."""
    wrong, in_doubt = [], 0
    for channel, id_, _, _ in found.sightings():
        row = found.rows.get(id_)
        if row is not None and row.channel == channel and not row.is_sent and row.is_doubtful:
            in_doubt += 1
        elif row is None or row.channel != channel or not row.is_sent:
            wrong.append(id_)
    return none_of(
        "seen, not sent", sorted(wrong),
        f"{len(found.seen()):,} received: sent, or {in_doubt} recorded as in doubt",
    )  # fmt: skip


def _late(found: Evidence) -> Iterator[str]:
    for _, id_, _, began_at in found.sightings():
        row = found.rows.get(id_)
        if row and row.expires_at is not None and began_at > row.expires_at + TRAVEL_SECONDS:
            yield id_


def _of_processes(found: Evidence) -> Iterator[Check]:
    recorded = found.in_flight & found.unfinished
    ended = {id_ for id_ in recorded if id_ in found.rows and found.rows[id_].is_final}
    yield Check(
        "killed dispatcher",
        bool(found.in_flight) and ended == found.in_flight,
        f"{len(ended)} of {len(found.in_flight)} sends in flight were found unfinished, and ended",
    )
    yield Check("queues empty", not found.messages, f"{found.messages} messages are left in them")
    yield _dead(found)
    codes = ", ".join(map(str, found.exit_codes))
    is_clean = bool(found.exit_codes) and not any(found.exit_codes)
    yield Check("processes stopped", is_clean, f"on SIGTERM, with exit codes {codes}")


def _dead(found: Evidence) -> Check:
    """Compare the dead letters with the table: their notifications have ended, too."""
    open_ones = sorted(
        key for key in found.dead_letters if key in found.rows and not found.rows[key].is_final
    )
    count = len(found.dead_letters)
    return none_of(
        "dead, still open", open_ones,
        f"dead letters by the kill: {count}; their notifications have failed",
    )  # fmt: skip
