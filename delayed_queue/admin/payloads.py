"""A payload as an operator may read it: decoded where possible, never more than is bearable."""

from __future__ import annotations

import codecs
import json
import re
from typing import Any, Final

from django.utils.html import format_html
from django.utils.safestring import SafeString

from delayed_queue.admin.formats import MAX_SHOWN, block, quiet
from delayed_queue.codecs import codec_named, decode
from delayed_queue.exceptions import PayloadNotDecodable
from delayed_queue.observe.overview import name_of

# As much of a payload as is ever fetched: a column may hold a gigabyte.
MAX_READ: Final = 1_048_576
_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_PRETTY: Final = json.JSONEncoder(ensure_ascii=False, indent=2)


def show_payload(kind: str, head: bytes, size: int) -> SafeString:
    """Return the payload, given its first bytes (at most MAX_READ) and its whole size.

    Only the built-in codecs are used, by the name in the kind: a codec of the project's own may
    do anything with bytes that anyone may have written.
    """
    text, note = _readable(kind, head, is_whole=len(head) == size)
    shown = f"{size:,} bytes{note}"
    if len(text) > MAX_SHOWN or len(head) < size:
        shown += f"; the first {min(len(text), MAX_SHOWN):,} characters are shown"
    return format_html("{}{}", quiet(f"{shown}."), block(text[:MAX_SHOWN]))


def _readable(kind: str, head: bytes, *, is_whole: bool) -> tuple[str, str]:
    # What is sent to urls is the JSON that was added.
    if name_of(kind).codec not in {"json", "callback"}:
        return _as_text(head, is_whole=is_whole)
    if not is_whole:
        text, note = _as_text(head, is_whole=False)
        return text, f"{note}, too large to be read as JSON here"
    try:
        return _pretty(decode(codec_named("json"), head)), " of JSON, indented"
    except (PayloadNotDecodable, RecursionError) as error:
        text, note = _as_text(head, is_whole=True)
        return text, f"{note}, not readable as JSON ({error.__cause__ or error})"


def _pretty(value: Any) -> str:
    """Return indented JSON, not much longer than is shown: nesting could make it gigabytes."""
    parts: list[str] = []
    length = 0
    for part in _PRETTY.iterencode(value):
        parts.append(part)
        length += len(part)
        if length > MAX_SHOWN:
            break
    return "".join(parts)


def _as_text(head: bytes, *, is_whole: bool) -> tuple[str, str]:
    try:
        # Not final when cut: the last character may have been cut in two.
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=is_whole)
    except UnicodeDecodeError:
        return _as_hex(head)
    if _CONTROL.search(text, 0, MAX_SHOWN):
        return _as_hex(head)
    return text, " of text"


def _as_hex(head: bytes) -> tuple[str, str]:
    # Two characters and a blank a byte; one byte more than is shown, to tell that there is more.
    return head[: MAX_SHOWN // 3 + 1].hex(" "), ", shown in hexadecimal"
