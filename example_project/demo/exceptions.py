"""What ends the demo before its report."""

from __future__ import annotations


class DemoError(Exception):
    """The demo cannot go on; the text says why in a sentence or two."""


class Stalled(DemoError):
    """The act does not get on: nothing moves, or a process of it has ended."""
