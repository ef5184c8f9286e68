"""Suppress recipients, and lift suppressions, by the hash of the address alone."""

from __future__ import annotations

from itertools import islice
from typing import Any

from delayed_queue.notifications.models import Channel, Suppression
from delayed_queue.notifications.recipients import problem_with, recipient_hash
from delayed_queue.notifications.validation import MAX_ERRORS, FieldError, check_category


def suppress(
    channel: str,
    recipient: str,
    category: str = "",
    reason: str = Suppression.Reason.OPT_OUT,
) -> Suppression:
    """Write no more to the recipient, in a category or, with an empty one, at all."""
    kept, _ = Suppression.objects.update_or_create(
        channel=channel,
        recipient_hash=recipient_hash(channel, recipient),
        category=category,
        defaults={"reason": reason},
    )
    return kept


def lift(channel: str, recipient: str, category: str = "") -> bool:
    """Write to the recipient again; return whether that was suppressed."""
    found = Suppression.objects.filter(
        channel=channel, recipient_hash=recipient_hash(channel, recipient), category=category
    )
    return bool(found.delete()[0])


def change_suppression(raw: Any, *, is_lifted: bool) -> list[FieldError]:
    """Do as a JSON object says; return what is wrong with it instead, if anything is."""
    errors = list(_errors(raw))
    if not errors:
        values = (raw["channel"], raw["to"], raw.get("category") or "")
        if is_lifted:
            lift(*values)
        else:
            suppress(*values, raw.get("reason") or Suppression.Reason.OPT_OUT)
    return errors


def _errors(raw: Any) -> list[FieldError]:
    if not isinstance(raw, dict):
        return [FieldError("", "must be a JSON object")]
    names = {"channel", "to", "category", "reason"}
    unknown = islice((each for each in raw if each not in names), MAX_ERRORS + 1)
    errors = [FieldError("?", "is not a field of a suppression") for _ in unknown]
    wrong = {each for each in names if not isinstance(raw.get(each) or "", str)}
    errors += [FieldError(each, "must be a string") for each in sorted(wrong)]
    if errors:
        return errors
    if raw.get("channel") not in Channel.values:
        return [FieldError("channel", f"must be one of {', '.join(Channel.values)}")]
    checks = {
        "to": problem_with(raw["channel"], raw.get("to") or ""),
        "category": check_category(raw.get("category") or ""),
        "reason": _check_reason(raw.get("reason") or Suppression.Reason.OPT_OUT),
    }
    return [FieldError(path, message) for path, message in checks.items() if message]


def _check_reason(reason: str) -> str:
    known = Suppression.Reason.values
    return "" if reason in known else f"must be one of {', '.join(known)}"
