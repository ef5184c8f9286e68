"""Segments of an SMS, by which networks count and charge (3GPP TS 23.038 and 23.040)."""

from __future__ import annotations

from typing import Final

_BASIC: Final = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
# Each takes two septets: an escape and a character of the extension table.
_EXTENSION: Final = frozenset("\f^{}\\[~]|€")
_LETTERS: Final = _BASIC | _EXTENSION
# Septets of GSM-7, or units of UTF-16, in an SMS alone and in each segment of several.
_GSM: Final = (160, 153)
_UCS2: Final = (70, 67)


def segments_of(text: str) -> int:
    """Return the number of segments; an empty text has one."""
    letters = set(text)
    is_gsm = letters <= _LETTERS
    alone, each = _GSM if is_gsm else _UCS2
    doubled = letters & _EXTENSION if is_gsm else {one for one in letters if one > "\uffff"}
    if len(text) + sum(map(text.count, doubled)) <= alone:
        return 1
    # Fill segments in order: no character is split between two.
    segments, room = 1, each
    for one in text:
        size = 2 if one in doubled else 1
        if size > room:
            segments, room = segments + 1, each
        room -= size
    return segments
