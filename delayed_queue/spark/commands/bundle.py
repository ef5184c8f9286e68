"""``bundle`` and ``main``: what ``spark-submit`` is given, the package in a file and a program."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

import delayed_queue
from delayed_queue.spark.commands import DONE
from delayed_queue.spark.jobs.console import Console
from delayed_queue.spark.session import Stopping, private_directory
from delayed_queue.spark.settings import SparkSettings

_PACKAGE: Final = Path(delayed_queue.__file__).parent
# What executors never import: Django's side.
_LEFT_OUT: Final = {"__pycache__", "migrations", "templates", "static", "admin", "management"}


def bundle() -> Path:
    """Write the package to a zip in a directory of this user's own; return its path.

    The name has a digest of the contents: the same sources give the same file, in one step, so
    that several may ask at once.
    """
    names = sorted(_names())
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0".encode() + (_PACKAGE.parent / name).read_bytes())
    version = delayed_queue.__version__
    path = private_directory() / f"delayed_queue-{version}-{digest.hexdigest()[:12]}.zip"
    if not path.exists():
        _write(path, names)
    return path


def _names() -> list[str]:
    found = [
        each.relative_to(_PACKAGE.parent).as_posix()
        for each in _PACKAGE.rglob("*.py")
        if not _LEFT_OUT & set(each.relative_to(_PACKAGE).parts)
    ]
    finder = _PACKAGE.parent / "pyspark_delayed_queue.py"
    return [*found, finder.name] if finder.exists() else found


def _write(path: Path, names: list[str]) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as written:
        with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as packed:
            for name in names:
                packed.write(_PACKAGE.parent / name, name)
        Path(written.name).chmod(0o644)
    os.replace(written.name, path)  # noqa: PTH105 - one step, over one that came first


def add_arguments(parser: ArgumentParser) -> None:
    """Take none but the common ones."""


def execute(
    options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping
) -> int:
    path = str(bundle() if options.command == "bundle" else _PACKAGE / "spark" / "__main__.py")
    console.answer({"path": path}, [path])
    return DONE
