"""The act of the pipeline: a campaign comes in by Spark, archives and a report go out by Spark."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from example_project.data import make_campaign, make_vouchers
from example_project.demo.acts import Check, Outcome
from example_project.demo.jobs.orders import TOPIC
from example_project.demo.patience import Patience
from example_project.demo.pipeline import evidence
from example_project.demo.pipeline.checks import PARTS, Facts, checks
from example_project.demo.pipeline.commands import Desk, Order, what_is_missing
from example_project.demo.pipeline.evidence import LAKE_PREFIX, LANES, TENANT
from example_project.demo.stage import Stage
from example_project.notifications.samples import set_up
from example_project.shop import VOUCHERS_QUEUE_NAME, vouchers

TARGET: Final = "example_project.notifications.importing:import_rows"
WORKER: Final = (
    "runqueueworker", "--processes", "0", "--no-cron", "--no-color",
    *(each for name in (*LANES, VOUCHERS_QUEUE_NAME) for each in ("--queue", name)),
)  # fmt: skip
OVER: Final = "6s"
LOOK_SECONDS: Final = 0.2
# A step of Spark may say nothing for as long, on a machine that has more to do.
PATIENCE_FACTOR: Final = 3
# What the report is told of archived notifications.
EVENTS: Final = (
    "channel=kind", "send_at=scheduled_at", "ended_at=finished_at", "status=outcome",
    "outcome=reason",
)  # fmt: skip
NOTIFICATIONS: Final = "notifications_notification"
LETTERS: Final = "delayed_queue_dead_letter"


class PipelineAct:
    """A campaign and vouchers imported, worked off, archived, and measured."""

    name: Final = "pipeline"
    introduction: Final = (
        "Spark: a campaign is imported into the notification service and a file into a queue, "
        "and when all of it has ended it is archived and measured."
    )

    def __init__(self) -> None:
        self._warm: Desk | None = None

    def clear(self) -> None:
        """Delete the notifications, vouchers and manifests of an earlier run."""
        evidence.clear()

    def left(self) -> str:
        """Say what an interrupted run leaves in the database."""
        return (
            f"Notifications of the tenant {TENANT} and messages of the queue "
            f"{VOUCHERS_QUEUE_NAME} may be left; the next run deletes them."
        )

    def prepare(self, stage: Stage) -> None:
        """Say at once when there is no Spark; add the templates."""
        self._missing = what_is_missing()
        if self._missing:
            stage.console.warn(f"The act pipeline cannot run. {self._missing}")
        set_up()

    def warm_up(self, stage: Stage) -> None:
        """Start Spark, unless that was done before."""
        if self._warm is None and not self._missing:
            self._warm = Desk(stage)

    def run(self, stage: Stage) -> Outcome:
        """Run from start to end; without Spark, fail by what is to be installed for it."""
        if self._missing:
            check = Check("Spark can start", False, self._missing)
            return Outcome([("pipeline", "has not run")], {"missing": self._missing}, [check])
        self._stage, self._began_at = stage, time.monotonic()
        self._desk = self._warm or Desk(stage)
        self._lake = Path(tempfile.mkdtemp(prefix=LAKE_PREFIX))
        worker = stage.children.start(
            "worker", *WORKER, NOTIFICATION_PROVIDERS="", NOTIFICATION_RETRIES=""
        )
        facts = self._facts(*self._bring_in())
        codes = stage.children.stop([worker])
        code = self._desk.close()
        ended = Check("processes ended", not any([*codes, code]), f"exit codes {[*codes, code]}")
        stage.console.step("lake", f"{self._lake} stays, with archive, bad records and report")
        return Outcome(self._rows(facts), self._figures(facts), [*checks(facts), ended])

    # Commands

    def _bring_in(self) -> tuple[Order, Order, Order]:
        """Import the campaign, the vouchers, and the campaign once more; wait for the workers."""
        campaign, coupons = self._stage.directory / "campaign.jsonl", self._files()
        orders = (
            self._import(campaign, "--queue", TENANT, "--map", "id=key", "--target", TARGET),
            self._import(coupons, "--queue", VOUCHERS_QUEUE_NAME, "--map", "number=key",
                         "--over", OVER),
            self._import(campaign, "--queue", TENANT, "--map", "id=key", "--target", TARGET),
        )  # fmt: skip
        self._await(lambda: all(each.is_done for each in orders), "everything is stored")
        self._await(evidence.is_quiet, "everything has ended")
        return orders

    def _files(self) -> Path:
        """Write the two inputs; return that of the vouchers."""
        directory = self._stage.directory
        (directory / "campaign.jsonl").write_bytes(make_campaign.as_bytes())
        make_vouchers.write(directory / "vouchers.parquet")
        return directory / "vouchers.parquet"

    def _import(self, path: Path, *arguments: str) -> Order:
        quarantine = str(self._lake / "quarantine")
        return self._desk.hand_over("import", str(path), *arguments, "--quarantine", quarantine)

    def _archive(self) -> list[Order]:
        """Archive what is this act's own, and of the act of the jobs the calls that closed orders.

        Nothing else: the database may be somebody's.
        """
        return [
            self._archive_one("dead-letters", "--only", f"pKind={vouchers.kind}"),
            self._archive_one("callback-attempts", "--only", f"topic={TOPIC}"),
            self._archive_one(NOTIFICATIONS, "--age", "ended_at", "--only", f"tenant={TENANT}"),
        ]

    def _archive_one(self, table: str, *arguments: str) -> Order:
        to = str(self._archive_path)
        return self._desk.hand_over("archive", table, *arguments, "--older-than", "1ms", "--to", to)

    @property
    def _archive_path(self) -> Path:
        return self._lake / "archive"

    def _report(self) -> Order:
        mapping = [each for pair in EVENTS for each in ("--map", pair)]
        return self._desk.hand_over(
            "report", "--archive", str(self._archive_path / LETTERS),
            "--events", str(self._archive_path / NOTIFICATIONS), *mapping,
            "--out", str(self._lake / "report"),
        )  # fmt: skip

    def _await(self, is_over: Callable[[], bool], what: str) -> None:
        """Wait, saying for what; raises Stalled when a process ends, or nothing moves."""
        patience = Patience(PATIENCE_FACTOR * self._stage.patience)
        while not is_over():
            self._desk.tell()
            self._stage.children.check()
            seconds = time.monotonic() - self._began_at
            counts = evidence.notifications()
            state = f"{self._desk.state()}; {counts.total():,} notifications"
            moved = (self._desk.said, counts, evidence.waiting())
            patience.see(moved, f"not yet is {what}; {self._desk.state()}")
            self._stage.console.draw([], f"{seconds:3.0f} s: {state}")
            time.sleep(LOOK_SECONDS)
        self._desk.tell()

    # Afterwards

    def _facts(self, campaign: Order, coupons: Order, again: Order) -> Facts:
        before, expired, ids = evidence.before(), evidence.expired(), evidence.ids()
        archives, report = self._archive(), self._report()
        self._await(lambda: report.is_done, "archived and measured")
        evidence.forget_deliveries(ids)
        plots = sorted(str(each) for each in (self._lake / "report").glob("*.png"))
        return Facts(
            lines=sum(1 for _ in make_campaign.lines()),
            campaign=campaign.answer,
            again=again.answer,
            vouchers=coupons.answer,
            records=make_vouchers.COUNT,
            before=before,
            expired=expired,
            archives=self._archived(archives, before),
            report=report.answer,
            plots=plots,
        )

    def _archived(
        self, archives: Sequence[Order], before: evidence.Before
    ) -> list[evidence.Archived]:
        letters, attempts, notifications = (each.answer for each in archives)
        lake, count = self._archive_path, evidence.notifications().total()
        return [
            evidence.archived(letters, before.dead, evidence.dead(), lake),
            evidence.archived(attempts, before.attempts, evidence.attempts(), lake),
            evidence.archived(notifications, before.notifications.total(), count, lake),
        ]

    def _rows(self, facts: Facts) -> list[tuple[str, str]]:
        archived = ", ".join(f"{each.rows:,} of {each.source}" for each in facts.archives)
        rows = [
            ("campaign", _parts(facts.campaign)),
            ("again", _parts(facts.again)),
            ("vouchers", _parts(facts.vouchers)),
            ("", f"{len(facts.expired):,} expired, {facts.before.dead:,} dead letters"),
            ("archived", archived),
            ("bad ones", f"{self._lake}/quarantine"),
            ("archive", str(self._archive_path)),
            ("report", f"{self._lake}/report/report.json"),
        ]
        return [*rows, *(("plot", each) for each in facts.plots)]

    def _figures(self, facts: Facts) -> dict[str, Any]:
        names = ("input", *PARTS)
        return {
            "campaign": {name: facts.campaign[name] for name in names},
            "again": {name: facts.again[name] for name in names},
            "vouchers": {name: facts.vouchers[name] for name in names},
            "expired": len(facts.expired),
            "dead": facts.before.dead,
            "archived": {each.source: each.rows for each in facts.archives},
            "lake": str(self._lake),
            "plots": list(facts.plots),
            "seconds": round(time.monotonic() - self._began_at, 1),
            "report": json.loads((self._lake / "report" / "report.json").read_text("utf-8")),
        }


def _parts(answer: dict[str, Any]) -> str:
    parts = [f"{answer[part]:,} {part}" for part in PARTS if answer[part]]
    return f"{answer['input']:,} records: {', '.join(parts)}"
