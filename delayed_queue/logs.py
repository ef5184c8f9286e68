"""The log: lines of ``event=… key=value``, ids only, all written by ``log``.

Payloads stay out, and so do the texts of handlers' errors and reasons: they may hold personal
data; ``LOG_ERRORS`` adds the errors with their tracebacks.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from typing import Any, Final

logger = logging.getLogger("delayed_queue")

_PLAIN: Final = re.compile(r"[^\s\"=\\]+")


def quoted(value: str) -> str:
    """Return the value, escaped when it would break, fake or reorder a line of the log.

    Keys are the callers' text. A line break could forge an event; U+202E and other invisible
    signs, none of which is printable to Python, show an operator another key.
    """
    return value if value.isprintable() and _PLAIN.fullmatch(value) else json.dumps(value)


def log(level: int, event: str, error: BaseException | None = None, /, **fields: Any) -> None:
    """Write one line, ``event=… name=value …``; a value that could break or fake one is quoted.

    The record has the event as ``record.event`` and the values as ``record.fields``, for handlers
    that write JSON; ``error`` goes with its traceback.
    """
    if not logger.isEnabledFor(level):
        return
    template = "event=" + event + "".join(f" {name}=%s" for name in fields)
    values = [quoted(str(value)) for value in fields.values()]
    extra = {"event": event, "fields": fields}
    logger.log(level, template, *values, exc_info=error, extra=extra, stacklevel=2)


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def described(error: BaseException) -> str:
    """Return the type and the first line of an error of the database or the machine."""
    return f"{type(error).__name__}: {first_line(error)}"


def log_poll(queue: str, keys: Sequence[str]) -> None:
    """Log one poll of a queue, also an empty one: the number of messages, and their keys."""
    if logger.isEnabledFor(logging.DEBUG):
        log(logging.DEBUG, "polled", queue=queue, count=len(keys), keys=",".join(keys))
