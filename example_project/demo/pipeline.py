"""The act of the pipeline: Spark imports a campaign, archives rows, and makes a report."""

from __future__ import annotations

import json
import re
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from django.db.models import Count, QuerySet

from delayed_queue.http.models import CallbackAttempt
from delayed_queue.models import DeadLetter, Message
from delayed_queue.notifications.models import OPEN_STATUSES, Notification, Status, queue_name
from delayed_queue.spark.models import ArchiveManifest
from example_project.data import make_campaign, make_vouchers
from example_project.demo.jobs import ORDERS_TOPIC
from example_project.demo.notifications import leftovers_of
from example_project.demo.report import Check, Outcome, Row, none_of, repeated
from example_project.demo.stage import WORKER, Act, Stage, messages_of
from example_project.models import ExpiredVoucher
from example_project.samples import set_up
from example_project.shop import campaign, vouchers

TENANT: Final = campaign.name
LAKE_PREFIX: Final = "delayed-queue-demo-lake-"
QUEUES: Final = [queue_name("bulk", channel) for channel in ("email", "sms")]
SERVING: Final = (
    "--no-cron", *(each for name in (*QUEUES, vouchers.name, TENANT) for each in ("--queue", name)),
)  # fmt: skip
# The commands, as a data engineer types them, in a directory LAKE.
IMPORT_CAMPAIGN: Final = (
    f"import LAKE/campaign.jsonl --queue {TENANT} --map id=key --quarantine LAKE/quarantine"
)
IMPORTS: Final = (
    IMPORT_CAMPAIGN,
    f"import LAKE/vouchers.parquet --queue {vouchers.name} --map number=key --over 6s "
    "--quarantine LAKE/quarantine",
    IMPORT_CAMPAIGN,
)
# Rows of this act alone, and the calls of the act of the jobs: other rows of the database stay.
_TO: Final = "--older-than 1ms --to LAKE/archive"
ARCHIVES: Final = (
    f"archive dead-letters --only 'pKind={vouchers.kind},{campaign.kind}' {_TO}",
    f"archive callback-attempts --only topic={ORDERS_TOPIC} {_TO}",
    f"archive notifications --only tenant={TENANT} {_TO}",
    "report --archive LAKE/archive/delayed_queue_dead_letter --out LAKE/report",
)
STARTS: Final = "starting Java and a Spark session takes about ten seconds"
# Lines of Spark's log: the progress of a command, and its result.
_PROGRESS: Final = re.compile(r"^\[ *[\d.]+ s\] (.*)$", re.MULTILINE)
_ANSWER: Final = re.compile(r"^\{.*\}$", re.MULTILINE)
# Factor of the timeout: a step of Spark may log nothing for minutes.
TIMEOUT_FACTOR: Final = 3
PARTS: Final = ("created", "updated", "ignored", "duplicates", "quarantined")


class PipelineAct(Act):
    """Imports a campaign and vouchers, handles, archives and measures them."""

    name = "pipeline"
    introduction = "Spark imports a campaign, archives finished rows, makes a report"

    def __init__(self) -> None:
        self._spark: Spark | None = None

    def leftovers(self) -> Iterator[QuerySet[Any]]:
        """Yield the rows of an earlier run, with those of an unfinished archive."""
        yield from leftovers_of(TENANT, [f"{queue}|json" for queue in QUEUES])
        yield from messages_of(vouchers.kind, campaign.kind)
        yield ExpiredVoucher.objects.all()
        yield ArchiveManifest.objects.filter(path__contains=f"/{LAKE_PREFIX}")

    def warm_up(self, stage: Stage) -> None:
        self._spark = self._spark or Spark(stage)

    def run(self, stage: Stage) -> Outcome:
        set_up()
        spark = self._spark or Spark(stage)
        lake = Path(tempfile.mkdtemp(prefix=LAKE_PREFIX))
        stage.console.step("lake", f"{lake}, the directory of the files below; it is kept")
        (lake / "campaign.jsonl").write_bytes(make_campaign.as_bytes())
        make_vouchers.write(lake / "vouchers.parquet")
        # The provider that only logs, not those of the act before.
        stage.environment |= {"NOTIFICATION_PROVIDERS": "", "NOTIFICATION_RETRIES": ""}
        worker = stage.start("worker", *WORKER, *SERVING)
        spring, coupons, again = spark.run(IMPORTS, lake, lambda: not any(_waiting()))
        expired = list(ExpiredVoucher.objects.values_list("number", flat=True))
        counts, expected = notifications(), to_archive()
        refused = DeadLetter.objects.filter(kind=campaign.kind).count()
        *archives, measured = spark.run(ARCHIVES, lake)
        stage.stop([worker])
        spark.close()
        plots = [str(each) for each in (lake / "report").glob("*.png")]
        facts = Facts(
            spring, coupons, again, counts, refused, expected[0] - refused, expired, measured, plots
        )
        counted = zip(archives, expected, to_archive(), strict=True)
        found = [check_archive(*each, lake / "archive") for each in counted]
        bad = spring["quarantined"] + coupons["quarantined"]
        rows = [
            Row("campaign", counts.total(), f"notifications stored, {refused:,} refused"),
            Row("vouchers", coupons["created"], f"offered, {len(expired):,} of which expired"),
            Row("quarantined", bad, "invalid records"),
            Row("dead", facts.dead, "vouchers of a closed shop"),
            Row("archived", sum(expected), "rows, deleted from the database"),
            Row("lake", str(lake), "holds the archive and the report"),
        ]
        return Outcome(rows, [*checks(facts), *found])


class Spark:
    """A process of ``child.py`` that runs commands; its log has the progress and the results."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._child = stage, stage.start("spark", "spark")
        stage.console.step("spark", STARTS)

    def run(
        self, commands: Sequence[str], lake: Path, is_over: Callable[[], bool] = lambda: True
    ) -> list[Any]:
        """Return the results of these commands, once ``is_over`` holds too."""
        before = len(self._said(_ANSWER))
        for each in commands:
            shown = f"queuepipeline {each.replace('LAKE/', '')}"
            lines = textwrap.wrap(shown, 66, break_on_hyphens=False)
            self._stage.console.step("command", f"\n{'':13}".join(lines))
            self._child.tell(each.replace("LAKE", str(lake)))

        def state() -> str:
            said = [STARTS, *self._said(_PROGRESS)][-1].replace(f"{lake}/", "")
            return "{:,} notifications, {:,} messages open; Spark: {}".format(*_waiting(), said)

        self._stage.wait(
            lambda: len(self._said(_ANSWER)) == before + len(commands) and is_over(), state,
            TIMEOUT_FACTOR * self._stage.timeout,
        )  # fmt: skip
        return [json.loads(each) for each in self._said(_ANSWER)[before:]]

    def _said(self, what: re.Pattern[str]) -> list[str]:
        return what.findall(self._child.log.read_text(errors="replace"))

    def close(self) -> None:
        """Stop the process in order."""
        self._child.tell("")
        self._stage.codes.append(self._child.end(20))


# Counts in the database and the files, independent of the results of the pipeline


def notifications() -> Counter[tuple[str, str]]:
    """Return the number of the campaign's notifications by channel and status."""
    ours = Notification.objects.filter(tenant=TENANT).order_by()
    rows = ours.values_list("channel", "status").annotate(count=Count("pk"))
    return Counter({(channel, status): count for channel, status, count in rows})


def to_archive() -> tuple[int, int, int]:
    """Return the number of rows for each of the archives."""
    letters = DeadLetter.objects.filter(kind__in=(vouchers.kind, campaign.kind))
    attempts = CallbackAttempt.objects.filter(topic=ORDERS_TOPIC)
    return letters.count(), attempts.count(), notifications().total()


def _waiting() -> tuple[int, int]:
    """Return the number of open notifications, and of messages."""
    still_open = Notification.objects.filter(tenant=TENANT, status__in=OPEN_STATUSES)
    kinds = (vouchers.kind, campaign.kind)
    return still_open.count(), Message.objects.filter(kind__in=kinds).count()


def check_archive(answer: dict[str, Any], expected: int, left: int, lake: Path) -> Check:
    """Compare the rows in the files, counted by another reader, with those deleted and left."""
    # Here, because only this act needs it.
    import pyarrow.parquet as pq

    [table] = answer["tables"]
    made = ArchiveManifest.objects.filter(path__startswith=f"{lake}/{table['source']}/")
    wrong, rows = [], 0
    for manifest in made:
        directory = Path(manifest.path)
        said = {(each["name"], each["size"], each["rows"]) for each in manifest.files}
        found = {
            (each.name, each.stat().st_size, pq.read_metadata(each).num_rows)
            for each in directory.glob("*.parquet")
        }
        wrong += sorted({name for name, _, _ in said ^ found})
        rows += sum(number for _, _, number in found)
    is_same = expected == table["rows"] == table["deleted"] == rows and not left
    unfinished = made.exclude(state=ArchiveManifest.State.PRUNED).exists()
    files = f"changed files: {', '.join(wrong)}" if wrong else "files match the manifest"
    text = f"{rows:,} rows in files, {table['deleted']:,} deleted, {left:,} left; {files}"
    name = f"archived {table['source'].rpartition('_')[2]}s"
    return Check(name, is_same and not wrong and not unfinished, text)


# The checks


class Facts(NamedTuple):
    """The results of the commands, and the counts."""

    campaign: dict[str, Any]
    vouchers: dict[str, Any]
    again: dict[str, Any]
    # Before the archives: notifications by channel and status, refused records, dead and expired
    # vouchers.
    notifications: Counter[tuple[str, str]]
    refused: int
    dead: int
    expired: Sequence[str]
    report: dict[str, Any]
    plots: Sequence[str]
    lines: int = 4008
    records: int = make_vouchers.COUNT


def checks(facts: Facts) -> Iterator[Check]:
    """Yield the checks of the imports and the report."""
    created = facts.campaign["created"]
    yield _adds_up("campaign adds up", facts.campaign, facts.lines)
    yield _adds_up("vouchers add up", facts.vouchers, facts.records)
    counts: Counter[str] = Counter()
    for (_, status), count in facts.notifications.items():
        counts[status] += count
    waiting = sum(counts[status] for status in OPEN_STATUSES)
    sent, cancelled = counts[Status.SUCCESSFULLY_PROCESSED], counts[Status.CANCELLED]
    said = f"{sent:,} sent, {cancelled:,} suppressed, {facts.refused:,} refused"
    is_whole = not waiting and counts.total() == created - facts.refused == sent + cancelled
    yield Check("campaign finished", is_whole, said)
    is_same = facts.again == {**facts.campaign, "was_done": True}
    yield Check("second import", is_same, "offered nothing, and returned the same counts")
    offered, expired = facts.vouchers["created"], len(set(facts.expired))
    lost = offered - expired - facts.dead
    said = f"{offered:,} offered, {expired:,} expired, {facts.dead:,} dead letters"
    yield Check("no voucher lost", not lost, said)
    yield none_of("none expired twice", repeated(facts.expired), "one row for each voucher")
    yield _report(facts)


def _adds_up(name: str, answer: dict[str, Any], lines: int) -> Check:
    said = ", ".join(f"{answer[part]:,} {part}" for part in PARTS if answer[part])
    is_whole = sum(answer[part] for part in PARTS) == answer["input"] == lines
    return Check(name, is_whole, f"{lines:,} records: {said}")


def _report(facts: Facts) -> Check:
    """Compare the report's count of dead vouchers with the database's."""
    found = {each["kind"]: each["dead"] for each in facts.report["kinds"]}
    dead = found.get(vouchers.kind, 0)
    text = f"{dead:,} dead vouchers, {facts.dead:,} in the database; {len(facts.plots)} plots"
    wrong = [] if dead == facts.dead else [vouchers.kind]
    return none_of("report is right", wrong, text, and_also=bool(facts.plots))
