"""``doctor``, ``bundle`` and ``main``: what the other commands need, and where it is."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Final

from delayed_queue.spark.bundle import bundle
from delayed_queue.spark.commands.arguments import DONE, FAILED, Command
from delayed_queue.spark.jobs.console import Console
from delayed_queue.spark.settings import SparkSettings
from delayed_queue.spark.starting import Stopping


def _nothing(parser: ArgumentParser) -> None:
    pass


def _doctor(
    options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping
) -> int:
    from delayed_queue.spark import doctor

    findings = doctor.examine(settings, console, is_verbose=options.verbose)
    console.answer({"findings": [asdict(each) for each in findings]}, doctor.lines_of(findings))
    return FAILED if any(each.level == "fail" for each in findings) else DONE


def _bundle(
    options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping
) -> int:
    path = str(bundle())
    console.answer({"path": path}, [path])
    return DONE


def _main(options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping) -> int:
    path = str(Path(__file__).parent.with_name("__main__.py"))
    console.answer({"path": path}, [path])
    return DONE


COMMANDS: Final = (
    Command("doctor", "Say what is wrong with the environment.", _nothing, _doctor),
    Command("bundle", "Print the path of the package for --py-files.", _nothing, _bundle),
    Command("main", "Print the path of the program for spark-submit.", _nothing, _main),
)
