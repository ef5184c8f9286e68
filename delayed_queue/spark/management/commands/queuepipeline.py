"""``manage.py queuepipeline``: a shell around ``python -m delayed_queue.spark``."""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER, ArgumentParser
from typing import Any

from django.db import connections
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from delayed_queue.exceptions import needing
from delayed_queue.management.arguments import FORMAT, add_all, add_database
from delayed_queue.management.base import QueueCommand
from delayed_queue.spark.apps import spark_settings


class Command(QueueCommand):
    help = gettext_noop(
        "Fill, drain, archive, replay and measure queues on Spark: import, drain, archive, "
        "replay, snapshot, report, doctor, bundle, main. Each has its own --help."
    )
    # They ask the database, and Spark is slow enough to start.
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_database(parser)
        add_all(parser, FORMAT)
        parser.add_argument(
            "arguments", nargs=REMAINDER, metavar="COMMAND …", help=_("as of delayed_queue.spark")
        )

    def handle(self, **options: Any) -> None:
        with needing("spark", "queuepipeline"):
            from delayed_queue.spark.database import dsn_from_django
            from delayed_queue.spark.pipeline import cli
            from delayed_queue.spark.settings import VARIABLE
        # Through the environment: all users of the machine, and Spark, can read arguments.
        os.environ[VARIABLE] = dsn_from_django(connections[options["database"]].settings_dict)
        arguments = options["arguments"] or ["--help"]
        if arguments[0] in cli.COMMANDS:  # a later --format wins
            arguments[1:1] = ["--format", options["format"]]
        code = cli.main(arguments, spark_settings())
        if code:
            sys.exit(code)
