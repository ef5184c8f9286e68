"""One clear sentence of what Spark raises in pages."""

from __future__ import annotations

import re
from typing import Final

from delayed_queue.exceptions import DelayedQueueError

BINARY: Final = "pip install 'psycopg[binary]'"

# The last line of a Python traceback, wherever Spark has put it.
_RAISED: Final = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w+): (.+)$", re.MULTILINE)
_OURS: Final = re.compile(r"delayed_queue\.[\w.]*\.([A-Z]\w+): (.+)$", re.MULTILINE)
# What psycopg says, before it lists what it has tried.
_NO_LIBPQ: Final = "no pq wrapper available"
_CLASS: Final = re.compile(r"^\[(\w+(?:\.\w+)*)\]\s*")
_JAVA: Final = re.compile(
    r"^(?:: |Caused by: )?((?:java|org)\.[\w.$]+(?:Exception|Error)): (.+)$", re.M
)


def sentence_of(error: BaseException) -> str:
    """Return what went wrong: our own words where they are in it, else Spark's first line."""
    if isinstance(error, DelayedQueueError):
        return str(error)
    if isinstance(error, ImportError) and _NO_LIBPQ in str(error):
        return f"psycopg finds no libpq: {BINARY}, or install libpq."
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1][1])
    if "Traceback (most recent call last)" in text:
        raised = _RAISED.findall(text)
        if raised:
            return f"{raised[-1][0]}: {raised[-1][1]}"
    java = _JAVA.findall(text)
    if java and text.startswith("An error occurred while calling"):
        return f"{java[-1][0].rpartition('.')[2]}: {java[-1][1]}"
    first = text.strip().partition("\n")[0]
    return _CLASS.sub("", first) or type(error).__name__
