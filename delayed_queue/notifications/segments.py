"""Segments of an SMS, by which networks count and charge (3GPP TS 23.038 and 23.040)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_BASIC: Final = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
# Each takes two septets: an escape and a character of the extension table.
_EXTENSION: Final = frozenset("\f^{}\\[~]|€")
# Septets of GSM-7, or units of UTF-16, in an SMS alone and in each segment of several.
_GSM: Final = (160, 153)
_UCS2: Final = (70, 67)


def segments_of(text: str) -> int:
    """Return the number of segments; an empty text has one."""
    letters = set(text)
    if letters <= _BASIC | _EXTENSION:
        return _count((2 if each in _EXTENSION else 1 for each in text), *_GSM)
    return _count((2 if each > "\uffff" else 1 for each in text), *_UCS2)


def _count(sizes: Iterable[int], alone: int, each: int) -> int:
    """Fill segments in order: no character is split between two."""
    total, segments, room = 0, 1, each
    for size in sizes:
        total += size
        if size > room:
            segments, room = segments + 1, each
        room -= size
    return 1 if total <= alone else segments
