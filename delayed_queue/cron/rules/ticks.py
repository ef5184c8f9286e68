"""Ticks: the messages of a schedule, their keys, and which of the missed ones to catch up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from delayed_queue.cron.rules.base import Schedule
from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage
from delayed_queue.messages import MAX_KEY_LENGTH, check_schedule, check_text

# Of an instant in milliseconds, from 2001 to 2286.
_USUAL_DIGITS: Final = 13


class MissedTicks(StrEnum):
    """The choice of ticks to create after a time in which nobody created any."""

    SKIP = "skip"
    LATEST = "latest"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class CronMessage:
    """A tick to install: its key is made of ``schedule_at``, it is due at ``deliver_at``."""

    payload: Any
    schedule_at: datetime
    deliver_at: datetime | None = None

    def __post_init__(self) -> None:
        if self.schedule_at is None:
            raise InvalidMessage("A tick needs its schedule_at, an aware datetime.")
        for name in ("schedule_at", "deliver_at"):
            try:
                check_schedule(getattr(self, name))
            except InvalidMessage as error:
                raise InvalidMessage(f"The {name} of a tick: {error}") from error

    @property
    def due_at(self) -> datetime:
        """When the tick is delivered: ``deliver_at``, or else ``schedule_at``."""
        return self.schedule_at if self.deliver_at is None else self.deliver_at


def tick_key(key_prefix: str, config_hash: str, schedule_at: datetime) -> str:
    """Return ``{key_prefix}/{config_hash}/{milliseconds since the epoch}``, at most 200 long."""
    check_key_prefix(key_prefix, config_hash)
    if (milliseconds := check_schedule(schedule_at)) is None:
        raise InvalidMessage("The key of a tick needs its schedule_at, an aware datetime.")
    key = f"{key_prefix}/{config_hash}/{milliseconds}"
    if len(key) > MAX_KEY_LENGTH:
        raise _too_long(key_prefix, len(key))
    return key


def check_key_prefix(key_prefix: str, config_hash: str = "0" * 32) -> str:
    """Return the prefix, or refuse one that cannot start the keys of ticks, from now on."""
    if not isinstance(key_prefix, str) or not key_prefix.strip():
        raise InvalidConfiguration(f"A key prefix must not be blank: {key_prefix!r}.")
    _check_text("key prefix", key_prefix)
    length = len(key_prefix) + len(check_config_hash(config_hash)) + 2 + _USUAL_DIGITS
    if length > MAX_KEY_LENGTH:
        raise _too_long(key_prefix, length)
    return key_prefix


def check_config_hash(config_hash: str) -> str:
    """Return the hash, or refuse a blank one and one with a slash.

    With a slash, the keys of prefix ``a`` and hash ``b/c`` would be those of ``a/b`` and ``c``.
    """
    if not isinstance(config_hash, str) or not config_hash.strip() or "/" in config_hash:
        raise InvalidConfiguration(
            f"A configuration hash must be text without a slash: {config_hash!r}."
        )
    return _check_text("configuration hash", config_hash)


def _check_text(what: str, value: str) -> str:
    try:
        return check_text(what, value)
    except InvalidMessage as error:
        raise InvalidConfiguration(str(error)) from error


def _too_long(key_prefix: str, length: int) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"The key prefix {key_prefix[:40]!r} makes keys of {length} characters; "
        f"at most {MAX_KEY_LENGTH} fit."
    )


def missed(
    schedule: Schedule,
    last_tick: datetime | None,
    now: datetime,
    policy: MissedTicks | str = MissedTicks.LATEST,
    cap: int = 100,
) -> list[datetime]:
    """Return the ticks to create for last_tick < time ≤ now, ascending.

    ``skip`` gives none, ``latest`` the last one, ``all`` the last ``cap``. A schedule that has
    never had a tick, and a last tick ahead of now (another host's clock), have missed none.
    """
    limits = {MissedTicks.SKIP: 0, MissedTicks.LATEST: 1, MissedTicks.ALL: cap}
    if policy not in limits:
        raise InvalidConfiguration(f"Unknown policy for missed ticks: {policy!r}.")
    if type(cap) is not int or cap < 1:
        raise InvalidConfiguration(f"cap must be a number from 1, not {cap!r}.")
    limit = limits[MissedTicks(policy)]
    if last_tick is None or limit == 0:
        return []
    return schedule.latest_between(last_tick, now, limit)
