"""What ends the demo before its report."""

from __future__ import annotations


class DemoError(Exception):
    """The demo cannot go on; the text says why in a sentence or two."""
