"""A guess at what was meant by a name that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from typing import Final

# To compare two names takes as long as the one times the other, and callers choose the names.
MAX_LENGTH: Final = 40
MAX_KNOWN: Final = 200


def suggest(name: object, known: Iterable[str]) -> str | None:
    """Return the known name that is most like this one, whatever its case; None if none is.

    None, too, for a name that is too long to be a slip of the pen.
    """
    if not isinstance(name, str) or len(name) > MAX_LENGTH:
        return None
    by_fold = {each.casefold(): each for each in islice(known, MAX_KNOWN)}
    close = get_close_matches(name.casefold(), by_fold, n=1)
    return by_fold[close[0]] if close else None


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return a question that names the nearest of what is known, after a blank; "" for none."""
    close = suggest(name, known)
    return f" Did you mean {close!r}?" if close else ""
