"""A host of the cron tests: a process that installs and handles ticks.

Each line of its input sets its clock. It answers with the keys it handled, as JSON.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime, time, timedelta

import django

PERIOD = timedelta(minutes=45)


def main(hour: str) -> None:
    django.setup()
    from delayed_queue import DailySchedule, DelayedQueue, PeriodicSchedule
    from delayed_queue.testing import ManualClock

    clock = ManualClock()
    queue = DelayedQueue("races", clock=clock)
    daily = DailySchedule(timezone="Europe/Bucharest", hours=[time.fromisoformat(hour)])
    installers = [
        queue.cron.installer("daily", daily, lambda at: at.isoformat()),
        queue.cron.installer("periodic", PeriodicSchedule(PERIOD), lambda at: at.isoformat()),
    ]
    for line in sys.stdin:
        clock.set(datetime.fromisoformat(line.strip()))
        reports = [installer.run() for installer in installers]
        batch = queue.try_poll_many(100)
        batch.acknowledge()
        answer = {
            "handled": [[envelope.key, envelope.payload] for envelope in batch],
            "created": [report.created for report in reports],
            "superseded": [report.superseded_by for report in reports],
        }
        print(json.dumps(answer), flush=True)  # noqa: T201 - its answer


if __name__ == "__main__":
    main(sys.argv[1])
