"""The act of the pipeline: a campaign comes in by Spark, archives and a report go out by Spark."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from django.db import transaction
from django.db.models import Count, QuerySet

from delayed_queue.exceptions import DelayedQueueError
from delayed_queue.http.models import CallbackAttempt
from delayed_queue.models import DeadLetter, Message
from delayed_queue.notifications.models import OPEN_STATUSES, Notification, Status, queue_name
from delayed_queue.queue.queue import DROP_ALL_CONFIRMATION
from delayed_queue.spark.models import ArchiveManifest
from example_project.data import make_campaign, make_vouchers
from example_project.demo.checks import Check, Outcome, none_of, repeated, stopped
from example_project.demo.child import ANSWER
from example_project.demo.console import DemoError
from example_project.demo.jobs import ORDERS_TOPIC
from example_project.demo.notifications import forget
from example_project.demo.stage import WORKER, Act, Stage
from example_project.models import ExpiredVoucher
from example_project.samples import set_up
from example_project.shop import vouchers

TENANT: Final = "demo-spring"
LAKE_PREFIX: Final = "delayed-queue-demo-lake-"
QUEUES: Final = [queue_name("bulk", channel) for channel in ("email", "sms")]
SERVING: Final = (
    "--no-cron", *(each for name in (*QUEUES, vouchers.name) for each in ("--queue", name)),
)  # fmt: skip
NOTIFICATIONS: Final = "delayed_queue_notification"
# The commands, as a data engineer types them.
IMPORT_CAMPAIGN: Final = (
    "import {lake}/campaign.jsonl --queue {tenant} --map id=key --target "
    "delayed_queue.notifications.intake:import_rows --quarantine {lake}/quarantine"
)
IMPORTS: Final = (
    IMPORT_CAMPAIGN,
    "import {lake}/vouchers.parquet --queue {vouchers.name} --map number=key --over 6s "
    "--quarantine {lake}/quarantine",
    IMPORT_CAMPAIGN,
)
# What is this act's own, and of the act of the jobs the calls that closed orders. Nothing else: the
# database may be somebody's.
_TO: Final = "--older-than 1ms --to {lake}/archive"
ARCHIVES: Final = (
    f"archive dead-letters --only 'pKind={{vouchers.kind}}' {_TO}",
    f"archive callback-attempts --only topic={ORDERS_TOPIC} {_TO}",
    f"archive {NOTIFICATIONS} --age ended_at --only tenant={{tenant}} {_TO}",
    "report --archive {lake}/archive/delayed_queue_dead_letter "
    f"--events {{lake}}/archive/{NOTIFICATIONS} --map channel=kind --map send_at=scheduled_at "
    "--map ended_at=finished_at --map status=outcome --map outcome=reason --out {lake}/report",
)
# A step of Spark may say nothing for as long, on a machine that has more to do.
TIMEOUT_FACTOR: Final = 3
QUARANTINED: Final = 3
PARTS: Final = ("created", "updated", "ignored", "duplicates", "quarantined")
_ROWS: Final = (
    ("campaign", "{campaign[created]:>7,}  stored, {campaign[quarantined]:,} bad put aside"),
    ("vouchers", "{vouchers[created]:>7,}  offered: {expired:,} expired, {dead:,} dead letters"),
    ("archived", "{archived:>7,}  rows; archive and report are in {lake}"),
    ("took", "{seconds:.0f} s"),
)


class PipelineAct(Act):
    """A campaign and vouchers imported, worked off, archived, and measured."""

    name = "pipeline"
    introduction = "Spark imports a campaign, archives what has ended, and measures it"

    def __init__(self) -> None:
        self._spark: Spark | None = None

    @transaction.atomic
    def clear(self) -> None:
        """Delete what an earlier run left, also of an archive that it did not finish."""
        forget(TENANT, [f"{queue}|json" for queue in QUEUES])
        vouchers.drop_all_messages(DROP_ALL_CONFIRMATION)
        DeadLetter.objects.filter(kind=vouchers.kind).delete()
        ExpiredVoucher.objects.all().delete()
        ArchiveManifest.objects.filter(destination__contains=f"/{LAKE_PREFIX}").delete()

    def prepare(self, stage: Stage) -> None:
        set_up()

    def warm_up(self, stage: Stage) -> None:
        self._spark = self._spark or Spark(stage)

    def run(self, stage: Stage) -> Outcome:
        began, spark = time.monotonic(), self._spark or Spark(stage)
        lake = Path(tempfile.mkdtemp(prefix=LAKE_PREFIX))
        stage.console.step("lake", f"{lake}, where the files below are; it stays")
        (lake / "campaign.jsonl").write_bytes(make_campaign.as_bytes())
        make_vouchers.write(lake / "vouchers.parquet")
        # Not by the providers of the act before: by one that only says so.
        stage.environment |= {"NOTIFICATION_PROVIDERS": "", "NOTIFICATION_RETRIES": ""}
        worker = stage.start("worker", *WORKER, *SERVING)
        campaign, coupons, again = spark.run(IMPORTS, lake, _is_quiet)
        expired, expected = ExpiredVoucher.objects.values_list("number", flat=True), to_archive()
        facts = Facts(campaign, coupons, again, notifications(), expected[0], list(expired))
        *archives, facts.report = spark.run(ARCHIVES, lake)
        codes = [*stage.stop([worker]), spark.close()]
        facts.plots = sorted(str(each) for each in (lake / "report").glob("*.png"))
        counted = zip(archives, expected, to_archive(), strict=True)
        found = [check_archive(*each, lake / "archive") for each in counted]
        figures = {
            "campaign": campaign, "again": again, "vouchers": coupons,
            "expired": len(facts.expired), "dead": facts.dead, "archived": sum(expected),
            "lake": str(lake), "plots": facts.plots, "seconds": time.monotonic() - began,
        }  # fmt: skip
        return Outcome(figures, _ROWS, [*checks(facts), *found, stopped(codes)])


def what_is_missing() -> str:
    """Return what is to be installed before Spark can start; nothing when all is there."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        return "PySpark is not installed: pip install 'django-delayed-queue[spark,spark-jre]'."
    from delayed_queue.spark.session import find_java_home

    try:
        find_java_home()
    except DelayedQueueError as error:
        return str(error)
    return ""


# Spark: a process of ``child.py`` that runs commands one after the other

_PROGRESS: Final = re.compile(r"\[ *[\d.]+ s\] (.*)")


class Spark:
    """Tells that process which commands to run, and reads in its log how far it is."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._child = stage.start("spark", "spark")
        # How much of its log has been read, and what Spark has said last.
        self._read, self._said = 0, "starts: Java and a session of it take about ten seconds"
        stage.console.step("spark", self._said)

    def run(
        self, commands: Sequence[str], lake: Path, is_over: Callable[[], bool] = lambda: True
    ) -> list[Any]:
        """Return what these commands of ``queuepipeline`` have answered, once all else is over."""
        for each in commands:
            shown = each.replace("{lake}/", "").format(tenant=TENANT, vouchers=vouchers)
            lines = textwrap.wrap(f"queuepipeline {shown}", 86, break_on_hyphens=False)
            self._stage.console.step("command", f"\n{'':13}".join(lines))
            command = each.format(lake=lake, tenant=TENANT, vouchers=vouchers)
            self._child.tell(json.dumps([*shlex.split(command), "--format", "json"]))
        answers: list[Any] = []

        def have_answered() -> bool:
            answers.extend(self._new_answers(lake))
            return len(answers) == len(commands)

        def state() -> str:
            text = f"Spark: {self._said}" if len(answers) < len(commands) else "Spark has done it"
            left = _open_notifications().count(), _voucher_messages().count()
            return "{}; {:,} notifications and {:,} vouchers wait".format(text, *left)

        self._stage.wait(
            lambda: have_answered() and is_over(), state, TIMEOUT_FACTOR * self._stage.timeout
        )
        return answers

    def _new_answers(self, lake: Path) -> Iterator[Any]:
        """Take answers and progress out of what it has written since."""
        text = self._child.log.read_bytes()[self._read :]
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            if line.startswith(ANSWER):
                code, answer = json.loads(line.removeprefix(ANSWER))
                if code not in (0, QUARANTINED):
                    raise DemoError(f"A command of Spark failed after: {self._said}")
                yield answer
            elif found := _PROGRESS.fullmatch(line):
                self._said = found[1].replace(f"{lake}/", "")

    def close(self) -> int:
        """Have the process end in order, and return its exit code."""
        self._child.may_end = True
        self._child.tell("")
        return self._child.end(20)


# What is counted in the database and in the files, apart from what the pipeline says of itself


def notifications() -> Counter[tuple[str, str]]:
    """Return how many of the campaign's notifications there are by channel and status."""
    ours = Notification.objects.filter(tenant=TENANT).order_by()
    rows = ours.values_list("channel", "status").annotate(count=Count("pk"))
    return Counter({(channel, status): count for channel, status, count in rows})


def to_archive() -> tuple[int, int, int]:
    """Return how many rows each of the commands of ``ARCHIVES`` finds."""
    letters = DeadLetter.objects.filter(kind=vouchers.kind)
    attempts = CallbackAttempt.objects.filter(topic=ORDERS_TOPIC)
    return letters.count(), attempts.count(), notifications().total()


def _open_notifications() -> QuerySet[Notification]:
    return Notification.objects.filter(tenant=TENANT, status__in=OPEN_STATUSES)


def _voucher_messages() -> QuerySet[Message]:
    return Message.objects.filter(kind=vouchers.kind)


def _is_quiet() -> bool:
    """Return whether everything that came in has ended."""
    return not _open_notifications().exists() and not _voucher_messages().exists()


def check_archive(answer: dict[str, Any], expected: int, left: int, lake: Path) -> Check:
    """As many rows in the files as deleted, by checksums of our own; none left, none more."""
    # Here: what it is for needs Spark anyway.
    import pyarrow.parquet as pq

    [table] = answer["tables"]
    made = ArchiveManifest.objects.filter(source=table["source"], destination=str(lake))
    wrong, rows = [], 0
    for manifest in made:
        directory = lake / manifest.source / f"archive={manifest.pk:08d}"
        said = {each["name"]: each["sha256"] for each in manifest.files}
        found = {each.name: sha256(each) for each in directory.glob("*.parquet")}
        wrong += sorted(name for name in {*said, *found} if said.get(name) != found.get(name))
        rows += sum(pq.read_metadata(directory / each).num_rows for each in found)
    is_same = expected == table["rows"] == table["deleted"] == rows and not left
    unfinished = made.exclude(state=ArchiveManifest.State.PRUNED).exists()
    files = f"not as written: {', '.join(wrong)}" if wrong else "checksums hold"
    text = f"{rows:,} rows in files, {table['deleted']:,} deleted, {left:,} left; {files}"
    name = f"archived {table['source'].rpartition('_')[2]}s"
    return Check(name, is_same and not wrong and not unfinished, text)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# What must hold


@dataclass(slots=True)
class Facts:
    """The answers of the commands, and what was counted beside them."""

    campaign: dict[str, Any]
    vouchers: dict[str, Any]
    again: dict[str, Any]
    # Counted before the archiving: by channel and status; dead vouchers, and expired ones.
    notifications: Counter[tuple[str, str]]
    dead: int
    expired: Sequence[str]
    report: dict[str, Any] = field(default_factory=dict)
    plots: Sequence[str] = ()
    lines: int = 4008
    records: int = make_vouchers.COUNT


def checks(facts: Facts) -> Iterator[Check]:
    """Yield all that must hold."""
    created = facts.campaign["created"]
    yield _adds_up("campaign", facts.campaign, facts.lines)
    yield _adds_up("vouchers", facts.vouchers, facts.records)
    counts: Counter[str] = Counter()
    for (_, status), count in facts.notifications.items():
        counts[status] += count
    waiting = sum(counts[status] for status in OPEN_STATUSES)
    sent, cancelled = counts[Status.SUCCESSFULLY_PROCESSED], counts[Status.CANCELLED]
    said = f"{created:,} stored, {sent:,} sent, {cancelled:,} suppressed"
    is_whole = not waiting and counts.total() == created == sent + cancelled
    yield Check(f"campaign open {waiting}", is_whole, said)
    ignored = created + facts.campaign["ignored"]
    wanted = {**facts.campaign, "created": 0, "updated": 0, "ignored": ignored}
    is_same = all(facts.again[name] == wanted[name] for name in ("input", *PARTS))
    said = f"{facts.again['created']:,} created, {facts.again['ignored']:,} were there"
    yield Check("imported again", is_same, said)
    offered, expired = facts.vouchers["created"], len(set(facts.expired))
    lost = offered - expired - facts.dead
    said = f"{offered:,} offered, {expired:,} expired, {facts.dead:,} dead letters"
    yield Check(f"vouchers lost {lost}", not lost, said)
    yield none_of("expired twice", repeated(facts.expired), "one row for each voucher")
    yield _report(facts)


def _adds_up(name: str, answer: dict[str, Any], lines: int) -> Check:
    said = ", ".join(f"{answer[part]:,} {part}" for part in PARTS if answer[part])
    is_whole = sum(answer[part] for part in PARTS) == answer["input"] == lines
    return Check(f"{name} adds up", is_whole, f"{lines:,} records: {said}")


def _report(facts: Facts) -> Check:
    """Compare with the database how many the report says ended, and how many of them well."""
    counts = facts.notifications
    wanted = {channel: [0, counts[channel, Status.SUCCESSFULLY_PROCESSED]] for channel, _ in counts}
    for (channel, _), count in counts.items():
        wanted[channel][0] += count
    if facts.dead:
        wanted[vouchers.kind] = [facts.dead, 0]
    said = {each["kind"]: [each["messages"], each["done"]] for each in facts.report["kinds"]}
    wrong = [kind for kind, counts in wanted.items() if said.get(kind) != counts]
    shown = ", ".join(f"{kind} {ended:,}" for kind, (ended, _) in sorted(wanted.items()))
    text = f"{shown}: as counted in the database, and {len(facts.plots)} plots"
    return none_of("report wrong", wrong, text, and_also=bool(facts.plots))
