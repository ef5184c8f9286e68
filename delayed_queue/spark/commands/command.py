"""What a command is, and how it ends."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from delayed_queue.spark.jobs.console import Console
from delayed_queue.spark.settings import SparkSettings
from delayed_queue.spark.stopping import Stopping

DONE: Final = 0
FAILED: Final = 1
QUARANTINED: Final = 3


@dataclass(frozen=True, slots=True)
class Command:
    """A word of the command line."""

    name: str
    help: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace, SparkSettings, Console, Stopping], int]
