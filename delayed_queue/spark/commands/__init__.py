"""The commands, each a shell around a call; the modules are named after those of the jobs."""

from __future__ import annotations

from typing import Final

from delayed_queue.spark.commands import (
    archives,
    drains,
    environment,
    imports,
    replays,
    reports,
    snapshots,
)

# As --help lists them.
COMMANDS: Final = (
    imports.COMMAND,
    drains.COMMAND,
    archives.COMMAND,
    replays.COMMAND,
    snapshots.COMMAND,
    reports.COMMAND,
    *environment.COMMANDS,
)
