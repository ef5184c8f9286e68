"""``bundle`` and ``main``: the package as a file, and the program, for ``spark-submit``."""

from __future__ import annotations

import hashlib
import io
import zipfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import delayed_queue
from delayed_queue.spark.pipeline.cli import DONE
from delayed_queue.spark.pipeline.console import Console
from delayed_queue.spark.pipeline.session import Stopping, cache_directory, write_at_once
from delayed_queue.spark.settings import SparkSettings

_PACKAGE: Final = Path(delayed_queue.__file__).parent
# Django's side, which executors never import.
_LEFT_OUT: Final = {"__pycache__", "migrations", "templates", "static", "admin", "management"}


def bundle() -> Path:
    """Write the package to a zip in this user's cache; return its path.

    The name has a digest of the contents, so the same sources give the same file.
    """
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as packed:
        for source in sorted(_sources()):
            packed.write(source, source.relative_to(_PACKAGE.parent))
    digest = hashlib.sha256(written.getvalue()).hexdigest()[:12]
    path = cache_directory() / f"delayed_queue-{delayed_queue.__version__}-{digest}.zip"
    if not path.exists():
        write_at_once(path, written.getvalue(), 0o644)
    return path


def _sources() -> Iterator[Path]:
    for each in _PACKAGE.rglob("*.py"):
        if not _LEFT_OUT & set(each.relative_to(_PACKAGE).parts):
            yield each
    finder = _PACKAGE.with_name("pyspark_delayed_queue.py")
    if finder.exists():
        yield finder


def add_arguments(parser: ArgumentParser) -> None:
    """Both take only the common arguments."""


def execute(
    options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping
) -> int:
    program = _PACKAGE / "spark" / "__main__.py"
    path = str(bundle() if options.command == "bundle" else program)
    console.answer({"path": path}, [path])
    return DONE
