"""A process that replaces one configuration by another, until a test kills it."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

import django


def main(config_hash: str, start: str) -> None:
    django.setup()
    from delayed_queue import CronMessage, DelayedQueue

    at = datetime.fromtimestamp(int(start), UTC)
    messages = [CronMessage("tick", at + number * timedelta(minutes=1)) for number in range(5)]
    print("ready", flush=True)  # noqa: T201 - the test waits for it
    DelayedQueue("faults").cron.install_tick(config_hash, "report", messages)


if __name__ == "__main__":
    main(*sys.argv[1:])
