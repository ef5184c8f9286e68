"""Sphinx: the Markdown of this directory as HTML."""

from __future__ import annotations

import re
from pathlib import Path

_SOURCE = (Path(__file__).parent.parent / "delayed_queue" / "__init__.py").read_text("utf-8")
_VERSION = re.search(r'^__version__ = "(.+)"$', _SOURCE, re.MULTILINE)
if _VERSION is None:
    raise SystemExit("delayed_queue/__init__.py names no __version__")

project = "django-delayed-queue"
author = "the django-delayed-queue contributors"
copyright = f"2026, {author}"  # noqa: A001 # the name Sphinx reads
release = version = _VERSION.group(1)

extensions = ["myst_parser"]
# Links to headings, by the names that they have on GitHub too.
myst_heading_anchors = 4
exclude_patterns = ["_build"]
html_theme = "furo"
html_extra_path = ["llms.txt"]
html_title = f"{project} {release}"
