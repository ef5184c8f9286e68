"""The common description of failures of one cause, and its fingerprint."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

# Quoted values; an apostrophe is within or after a word.
_QUOTED: Final = re.compile(r"""(?<!\w)'[^'\n]*'(?!\w)|"[^"\n]*"|`[^`\n]*`|“[^”\n]*”""")
_WORD: Final = re.compile(r"[^\s()\[\]{},;=]+")
# The only number that distinguishes causes: an HTTP status.
_STATUS: Final = re.compile(r"(\b(?:HTTP|status) [1-5]\d\d\b)")
_FRAME: Final = re.compile(r'^[ |]*File "([^"\n]*)", line \d+, in (\S+)', re.MULTILINE)
_FOREIGN: Final = ("site-packages", "dist-packages", "/lib/python", "<frozen")
_MOST: Final = 500


def fingerprint(reason: str, error: str | None) -> str:
    """Return sixteen hexadecimal digits, the same for failures that ``describe`` alike."""
    return sha256(describe(reason, error).encode("utf-8", "replace")).hexdigest()[:16]


def describe(reason: str, error: str | None) -> str:
    """Return what failed and where, without numbers, ids and quoted values.

    ``error`` is the text of the dead letter: a traceback or a message.
    """
    frames = list(_FRAME.finditer(error or ""))
    if error is None or not frames:
        words = [reason, *(error or "").strip().splitlines()[:1]]
        return " · ".join(filter(None, map(generalized, words)))
    kind, colon, message = _raised(error[frames[-1].end() :]).partition(":")
    said = f"{kind}{colon} {generalized(message)}".strip()
    return f"{said} · {_place(frames)}"


def generalized(text: str) -> str:
    """Return the text without parts that differ between messages."""
    parts = _STATUS.split(_QUOTED.sub("'…'", text[:_MOST]))
    parts[::2] = [_WORD.sub(_without_number, each) for each in parts[::2]]
    return " ".join("".join(parts).split())


def _without_number(match: re.Match[str]) -> str:
    word = match[0]
    return "#" if any(each.isdigit() for each in word) else word


def _raised(rest: str) -> str:
    """Return the line after the innermost frame, which names the exception."""
    lines = [line.lstrip("| ") for line in rest.splitlines()[1:] if line[:1] not in (" ", "")]
    return lines[0] if lines else ""


def _place(frames: list[re.Match[str]]) -> str:
    """Return the innermost frame of the project, without its line, which changes with releases.

    Only the last two parts of the path, because the rest differs between hosts.
    """
    own = [each for each in frames if not any(name in each[1] for name in _FOREIGN)]
    path, function = (own or frames)[-1].groups()
    return f"{'/'.join(path.replace(chr(92), '/').split('/')[-2:])} in {function}"
