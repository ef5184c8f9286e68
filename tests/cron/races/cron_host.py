"""Hosts of the cron tests: processes that install and handle ticks.

They are forks of one process, which saves their imports. Each has a pipe for its input and one for
its output, whose numbers are arguments. Each line of the input sets the clock of a host; it answers
with the keys it handled, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, time, timedelta

import django

PERIOD = timedelta(minutes=45)


def main(hour: str, *pipes: str) -> None:
    django.setup()
    files = [tuple(map(int, each.split(","))) for each in pipes]
    for own in files:
        if os.fork() == 0:
            close(each for each in files if each != own)
            serve(hour, *own)
            return
    close(files)
    for _ in files:
        os.wait()


def close(files: Iterable[Sequence[int]]) -> None:
    """Close these, so that the output of a host ends with it."""
    for each in files:
        os.close(each[0])
        os.close(each[1])


def serve(hour: str, input_file: int, output_file: int) -> None:
    from delayed_queue import DailySchedule, DelayedQueue, PeriodicSchedule
    from delayed_queue.testing import ManualClock

    clock = ManualClock()
    queue = DelayedQueue("races", clock=clock)
    daily = DailySchedule(timezone="Europe/Bucharest", hours=[time.fromisoformat(hour)])
    installers = [
        queue.cron.installer("daily", daily, lambda at: at.isoformat()),
        queue.cron.installer("periodic", PeriodicSchedule(PERIOD), lambda at: at.isoformat()),
    ]
    with os.fdopen(input_file) as lines, os.fdopen(output_file, "w") as answers:
        for line in lines:
            clock.set(datetime.fromisoformat(line.strip()))
            reports = [installer.run() for installer in installers]
            batch = queue.try_poll_many(100)
            batch.acknowledge()
            answer = {
                "handled": [[envelope.key, envelope.payload] for envelope in batch],
                "created": [report.created for report in reports],
                "superseded": [report.superseded_by for report in reports],
            }
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
