"""The secret key of a machine on which the project is only tried out."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from example_project.postgres import default_directory, make_directory

ADVICE = "Set the SECRET_KEY environment variable, to 50 random characters or more"


def local_key() -> str:
    """Return the key beside the embedded server's data, made at the first call.

    There because what it seals, such as the secrets of endpoints, is in the data; and in no
    checkout, from where it would get into version control or into an image.
    """
    directory = default_directory()
    path = directory.with_name(f"{directory.name}.key")
    try:
        return _read(path) or _make(path)
    except OSError as error:
        raise ImproperlyConfigured(f"{ADVICE}; none can be kept at {path}: {error}") from error


def _read(path: Path) -> str:
    with suppress(FileNotFoundError):
        return path.read_text(encoding="ascii")
    return ""


def _make(path: Path) -> str:
    make_directory(path.parent)
    made = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_urlsafe(50))
    try:
        # A name for a whole file: of processes that begin at once, one gives it to its own.
        with suppress(FileExistsError):
            path.hardlink_to(made)
    finally:
        made.unlink()
    return _read(path)
