"""``bundle`` and ``main``: the package as a file, and the program, for ``spark-submit``."""

from __future__ import annotations

import hashlib
import io
import zipfile
from argparse import ArgumentParser, Namespace
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
    names = sorted(_names())
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0".encode() + (_PACKAGE.parent / name).read_bytes())
    version = delayed_queue.__version__
    path = cache_directory() / f"delayed_queue-{version}-{digest.hexdigest()[:12]}.zip"
    if not path.exists():
        write_at_once(path, _zipped(names), 0o644)
    return path


def _names() -> list[str]:
    found = [
        each.relative_to(_PACKAGE.parent).as_posix()
        for each in _PACKAGE.rglob("*.py")
        if not _LEFT_OUT & set(each.relative_to(_PACKAGE).parts)
    ]
    finder = _PACKAGE.parent / "pyspark_delayed_queue.py"
    return [*found, finder.name] if finder.exists() else found


def _zipped(names: list[str]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in names:
            packed.write(_PACKAGE.parent / name, name)
    return written.getvalue()


def add_arguments(parser: ArgumentParser) -> None:
    """Both take only the common arguments."""


def execute(
    options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping
) -> int:
    program = _PACKAGE / "spark" / "__main__.py"
    path = str(bundle() if options.command == "bundle" else program)
    console.answer({"path": path}, [path])
    return DONE
