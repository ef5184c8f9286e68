"""A directory of this user alone, for files that Java and Spark are told to trust."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from delayed_queue.exceptions import ResourceUnavailable


def private_directory() -> Path:
    """Return a directory in the temporary one that nobody else can write to.

    What lies in the temporary directory itself under a name that can be known before may be
    anybody's: raises ResourceUnavailable where another user has taken the name.
    """
    path = Path(tempfile.gettempdir()) / f"delayed_queue-{os.getuid()}"
    path.mkdir(mode=stat.S_IRWXU, exist_ok=True)
    found = path.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_own or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ResourceUnavailable(
            f"{path} can be written to by other users: remove it, or set TMPDIR."
        )
    return path
