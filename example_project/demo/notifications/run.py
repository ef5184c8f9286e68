"""The act of the notifications: everything at once, and everyone else fails now and then."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import astuple
from typing import Final

from example_project.demo import database
from example_project.demo.acts import Outcome
from example_project.demo.notifications import accounts, figures, render
from example_project.demo.notifications.broker import open_broker
from example_project.demo.notifications.checks import check
from example_project.demo.notifications.evidence import Evidence, gather
from example_project.demo.notifications.posting import Posting
from example_project.demo.notifications.progress import Moment, Progress
from example_project.demo.notifications.strangers import Strangers, strangers
from example_project.demo.notifications.traffic import read_traffic
from example_project.demo.notifications.trouble import Trouble
from example_project.demo.notifications.upstream import Upstream
from example_project.demo.patience import Patience
from example_project.demo.processes import Child
from example_project.demo.stage import Stage
from example_project.notifications import services
from example_project.notifications.models import OPEN_STATUSES, queue_name
from example_project.notifications.samples import set_up
from example_project.notifications.services import LANES

DISPATCHERS: Final = 2
# Short, so that what the killed one held comes back while one watches.
LEASE_SECONDS: Final = 5
RETRIES: Final = "1s 1s 2s 3s"
DISPATCHER: Final = (
    "runqueueworker", "--processes", "0", "--async-concurrency", "60", "--poll-interval", "1",
    "--lease", str(LEASE_SECONDS), "--shutdown-timeout", "5", "--no-cron", "--no-color",
    *(part for lane in LANES for part in ("--queue", queue_name(*lane))),
)  # fmt: skip
FRAME_SECONDS: Final = 0.25


class NotificationsAct:
    """Ten thousand requests by four ways in, and each is sent once or its end is told."""

    name: Final = "notifications"
    introduction: Final = (
        "Emails, texts and webhooks for a shop and a bank: each sent once and in time, though "
        "providers fail in every way and a dispatcher is killed."
    )

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit

    def clear(self) -> None:
        """Delete the notifications of an earlier run."""
        accounts.clear()

    def prepare(self, stage: Stage) -> None:
        """Open the third parties, and say in the settings of all processes where they are."""
        set_up()
        self._strangers: Strangers = stage.enter(strangers())
        stage.allow_calls(self._strangers.partners.port)
        stage.children.environment |= {
            "NOTIFICATION_PROVIDERS": json.dumps(self._strangers.providers()),
            "NOTIFICATION_RETRIES": RETRIES,
        }

    def warm_up(self, stage: Stage) -> None:
        """Nothing: its processes are up in a moment."""

    def run(self, stage: Stage) -> Outcome:
        """Run from start to end; raises DemoError when it cannot, or does not get on."""
        began = time.monotonic()
        self._stage = stage
        traffic = read_traffic(self._limit, self._strangers.webhooks)
        address, token = stage.web.address, accounts.set_up_token()
        with ExitStack() as stack:
            broker = stack.enter_context(open_broker(stage, self._strangers.partners.port))
            stage.console.step("broker", broker.name)
            self._start_dispatchers()
            posting = Posting(traffic, broker, lambda: Upstream(address, token))
            stack.callback(posting.stop)
            self._play(posting)
            codes = [broker.stop()]
            tally = broker.tally()
        running = [each for each in self._trouble.dispatchers if each.is_running]
        codes += stage.children.stop(running)
        seconds = time.monotonic() - began
        found = gather(posting, self._strangers, self._trouble, tally, codes, seconds)
        return _outcome(found)

    def left(self) -> str:
        """Say what an interrupted run leaves in the database."""
        left = figures.statuses()
        unsent = sum(left[status] for status in OPEN_STATUSES)
        return (
            f"Left in the database: {left.total():,} notifications, {unsent:,} of them not yet "
            "sent; the next run deletes them."
        )

    def _start_dispatchers(self) -> None:
        started_at = database.database_now()
        started = [self._start() for _ in range(DISPATCHERS)]
        # Or what goes wrong in the first seconds finds nobody at work.
        self._stage.wait_for(started, started_at)
        console = self._stage.console
        self._trouble = Trouble(self._strangers, console, self._start, started)
        names = ", ".join(str(each.pid) for each in started)
        console.step("dispatcher", f"processes {names}, each on all {len(LANES)} lanes")

    def _start(self) -> Child:
        return self._stage.children.start("dispatcher", *DISPATCHER)

    def _play(self, posting: Posting) -> None:
        """Let all requests come, and return when each has come to an end."""
        traffic = posting.traffic
        progress = Progress(self._stage.console, self._strangers)
        patience = Patience(self._stage.patience)
        traffic.began_at = time.time()
        posting.start()
        while True:
            self._stage.children.check()
            moment = _moment(posting)
            sweep()
            progress.show(moment, self._trouble.dispatchers)
            self._trouble.look(moment.share, moment.seconds)
            if _is_done(posting, moment) and self._trouble.is_over:
                break
            moved = (moment.accepted, moment.refused, moment.statuses, figures.messages())
            patience.see(moved, f"{_open(moment):,} notifications wait")
            time.sleep(FRAME_SECONDS)
        self._stage.console.keep()


def sweep() -> None:
    """Do at once what the schedule ``notifications-sweeps`` does once a minute.

    It ends those whose attempts were used up when their dispatcher was killed.
    """
    services.expire_overdue()
    services.fail_dead()


def _moment(posting: Posting) -> Moment:
    seconds = time.time() - posting.traffic.began_at
    tally = posting.broker.tally()
    refused = sum(not each.id for each in posting.answers)
    accepted = len(posting.answers) - refused + tally.accepted + tally.duplicates
    accepted += posting.campaign.stored + posting.campaign.duplicates
    share = seconds / posting.traffic.seconds
    return Moment(seconds, share, accepted, refused + tally.parked, figures.statuses())


def _is_done(posting: Posting, moment: Moment) -> bool:
    if (
        not posting.is_done
        or sum(astuple(posting.broker.tally())) < posting.published
        or _open(moment)
    ):
        return False
    # The moment may be from before the last came in.
    return figures.messages() == 0 and not any(
        figures.statuses()[status] for status in OPEN_STATUSES
    )


def _open(moment: Moment) -> int:
    return sum(moment.statuses[status] for status in OPEN_STATUSES)


def _outcome(found: Evidence) -> Outcome:
    return Outcome(list(render.rows(found)), render.as_json(found), check(found))
