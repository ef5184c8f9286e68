"""The act of the pipeline: a campaign comes in by Spark, archives and a report go out by Spark."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from django.core.management import execute_from_command_line
from django.db import connections, transaction
from django.db.models import Count

from delayed_queue.exceptions import DelayedQueueError
from delayed_queue.http.models import CallbackAttempt
from delayed_queue.models import DeadLetter, Message
from delayed_queue.notifications.models import (
    OPEN_STATUSES,
    Delivery,
    Notification,
    Status,
    queue_name,
)
from delayed_queue.queue.queue import DROP_ALL_CONFIRMATION
from delayed_queue.spark.models import ArchiveManifest
from delayed_queue.spark.settings import SparkSettings
from example_project.data import make_campaign, make_vouchers
from example_project.demo.jobs import ORDERS_TOPIC
from example_project.demo.notifications import forget
from example_project.demo.stage import (
    WORKER,
    Act,
    Check,
    DemoError,
    Look,
    Outcome,
    Stage,
    filled,
    none_of,
    stopped,
)
from example_project.models import ExpiredVoucher
from example_project.samples import set_up
from example_project.shop import VOUCHERS_QUEUE_NAME, vouchers

TENANT: Final = "demo-spring"
LAKE_PREFIX: Final = "delayed-queue-demo-lake-"
QUEUES: Final = [queue_name("bulk", channel) for channel in ("email", "sms")]
SERVING: Final = (
    "--no-cron", *(each for name in (*QUEUES, VOUCHERS_QUEUE_NAME) for each in ("--queue", name))
)  # fmt: skip
TARGET: Final = "delayed_queue.notifications.intake:import_rows"
NOTIFICATIONS: Final = "delayed_queue_notification"
# What the report is told of archived notifications.
EVENTS: Final = (
    "channel=kind", "send_at=scheduled_at", "ended_at=finished_at", "status=outcome",
    "outcome=reason",
)  # fmt: skip
# A step of Spark may say nothing for as long, on a machine that has more to do.
TIMEOUT_FACTOR: Final = 3
QUARANTINED: Final = 3
PARTS: Final = ("created", "updated", "ignored", "duplicates", "quarantined")


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

    def left(self) -> str:
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
        if self._spark is None and not self._missing:
            self._spark = Spark(stage)

    def run(self, stage: Stage) -> Outcome:
        """Run from start to end; without Spark, fail by what is to be installed for it."""
        if self._missing:
            check = Check("Spark can start", False, self._missing)
            return Outcome({"missing": self._missing}, [("pipeline", "has not run")], [check])
        began = time.monotonic()
        self.warm_up(stage)
        lake = Path(tempfile.mkdtemp(prefix=LAKE_PREFIX))
        stage.console.step("lake", f"{lake}, where the files below are; it stays")
        spark = self._spark or Spark(stage)
        # Not by the providers of the act before: by one that only says so.
        stage.environment |= {"NOTIFICATION_PROVIDERS": "", "NOTIFICATION_RETRIES": ""}
        worker = stage.start("worker", *WORKER, *SERVING)
        campaign, coupons, again = _bring_in(spark, lake)
        expired = Counter(ExpiredVoucher.objects.values_list("number", flat=True))
        facts = Facts(campaign, coupons, again, notifications(), expired, dead())
        expected = (facts.dead, attempts(), facts.notifications.total())
        ids = list(Notification.objects.filter(tenant=TENANT).values_list("pk", flat=True))
        *archives, facts.report = _archive_and_report(spark, lake)
        Delivery.objects.filter(notification_id__in=ids).delete()
        codes = [*stage.stop([worker]), spark.close()]
        facts.plots = sorted(str(each) for each in (lake / "report").glob("*.png"))
        left = (dead(), attempts(), notifications().total())
        found = [
            check_archive(*each, lake / "archive")
            for each in zip(archives, expected, left, strict=True)
        ]
        figures = {
            "campaign": facts.campaign, "again": facts.again, "vouchers": facts.vouchers,
            "expired": len(expired), "dead": facts.dead, "archived": sum(expected),
            "lake": str(lake), "plots": facts.plots, "seconds": time.monotonic() - began,
        }  # fmt: skip
        return Outcome(figures, filled(_ROWS, figures), [*checks(facts), *found, stopped(codes)])


_ROWS: Final = (
    ("campaign", "{campaign[created]:>7,}  stored, {campaign[quarantined]:,} bad put aside"),
    ("vouchers", "{vouchers[created]:>7,}  offered: {expired:,} expired, {dead:,} dead letters"),
    ("archived", "{archived:>7,}  rows; archive and report are in {lake}"),
    ("took", "{seconds:.0f} s"),
)


# Spark


def what_is_missing() -> str:
    """Return what is to be installed before Spark can start; nothing when all is there."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        return (
            "The pipeline needs PySpark, which is not installed: "
            "pip install 'django-delayed-queue[spark,spark-jre]'."
        )
    from delayed_queue.spark.session import find_java_home

    try:
        find_java_home()
    except DelayedQueueError as error:
        return str(error)
    return ""


_PROGRESS: Final = re.compile(r"\[ *[\d.]+ s\] (.*)")


def _without_lake(text: str) -> str:
    """Return a text without the directory that is the same in all of them."""
    return re.sub(rf"\S+/{LAKE_PREFIX}\w+/", "", text)


class Spark:
    """A process that runs commands of the pipeline one after the other, so on one Spark."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._child = stage.start("spark", "spark")
        self._read = 0
        self._asked: list[str] = []
        self._answers: list[Any] = []
        # What Spark has said last.
        self._said = "starts: Java and a session of it take about ten seconds"
        stage.console.step("spark", self._said)

    def run(self, *arguments: str) -> None:
        """Have a command run when those before it are done."""
        shown = _without_lake(shlex.join(arguments))
        self._stage.console.step("command", f"queuepipeline {shown}")
        self._child.tell(json.dumps([*arguments, "--format", "json"]))
        self._asked.append(shown)

    def answers(self, is_over: Callable[[], bool] = lambda: True) -> list[Any]:
        """Return what the commands have answered, once all have and all else is over."""
        self._stage.wait(lambda: self._look(is_over), TIMEOUT_FACTOR * self._stage.timeout)
        found, self._answers, self._asked = self._answers, [], []
        return found

    def _look(self, is_over: Callable[[], bool]) -> Look:
        self._listen()
        left = self._asked[len(self._answers) :]
        text = f"Spark: {self._said}" if left else "the messages are worked off"
        moved = (self._read, notifications(), Message.objects.filter(kind=vouchers.kind).count())
        return Look(not left and is_over(), moved, text)

    def _listen(self) -> None:
        """Take answers and progress out of what it has written since."""
        text = self._child.log.read_bytes()[self._read :]
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            if line.startswith(_ANSWER):
                code, answer = json.loads(line.removeprefix(_ANSWER))
                if code not in (0, QUARANTINED):
                    raise DemoError(f"`queuepipeline {self._asked[len(self._answers)]}` failed.")
                self._answers.append(answer)
            elif found := _PROGRESS.fullmatch(line):
                self._said = _without_lake(found[1])

    def close(self) -> int:
        """Have the process end in order, and return its exit code."""
        self._child.may_end = True
        self._child.tell("")
        return self._child.end(20)


_ANSWER: Final = "answer "


def serve(heard: Callable[[], bytes]) -> None:
    """Be that process: run what is heard, a JSON list a line, until an empty line comes."""
    from delayed_queue.spark.database import dsn_from_django
    from delayed_queue.spark.jobs.console import Console
    from delayed_queue.spark.session import session
    from delayed_queue.spark.settings import VARIABLE

    # Before the JVM starts: executors have its environment.
    os.environ[VARIABLE] = dsn_from_django(connections["default"].settings_dict)
    # A page of its own, and parts for a cluster, are more than a demo needs.
    conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"}
    settings = replace(SparkSettings(), CORES=min(4, os.cpu_count() or 1), CONF=conf)
    with session(settings, Console(), "demo") as spark:
        # Once, while the acts before still wait: what is slow the first time.
        spark.range(1).selectExpr("md5(string(id))").collect()
        while line := heard():
            code, answer = _run(json.loads(line))
            sys.stdout.write(f"\n{_ANSWER}{json.dumps([code, answer])}\n")


def _run(arguments: list[str]) -> tuple[int, Any]:
    """Return a command's exit code, and its answer when it gave one."""
    said, code = io.StringIO(), 0
    with redirect_stdout(said):
        try:
            execute_from_command_line(["manage.py", "queuepipeline", *arguments])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return code, json.loads(said.getvalue()) if said.getvalue() else None


# The commands, as a data engineer types them


def _bring_in(spark: Spark, lake: Path) -> list[Any]:
    """Import the campaign, the vouchers, and the campaign once more; wait for the workers."""
    campaign, coupons = lake / "campaign.jsonl", lake / "vouchers.parquet"
    campaign.write_bytes(make_campaign.as_bytes())
    make_vouchers.write(coupons)
    put_aside = ("--quarantine", str(lake / "quarantine"))
    first = (str(campaign), "--queue", TENANT, "--map", "id=key", "--target", TARGET, *put_aside)
    spark.run("import", *first)
    spark.run("import", str(coupons), "--queue", VOUCHERS_QUEUE_NAME, "--map", "number=key",
              "--over", "6s", *put_aside)  # fmt: skip
    spark.run("import", *first)
    return spark.answers(_is_quiet)


def _archive_and_report(spark: Spark, lake: Path) -> list[Any]:
    """Archive what is this act's own, and of the act of the jobs the calls that closed orders.

    Nothing else: the database may be somebody's.
    """
    archive = lake / "archive"
    to = ("--older-than", "1ms", "--to", str(archive))
    spark.run("archive", "dead-letters", "--only", f"pKind={vouchers.kind}", *to)
    spark.run("archive", "callback-attempts", "--only", f"topic={ORDERS_TOPIC}", *to)
    spark.run("archive", NOTIFICATIONS, "--age", "ended_at", "--only", f"tenant={TENANT}", *to)
    spark.run(
        "report", "--archive", str(archive / "delayed_queue_dead_letter"),
        "--events", str(archive / NOTIFICATIONS),
        *(each for pair in EVENTS for each in ("--map", pair)), "--out", str(lake / "report"),
    )  # fmt: skip
    return spark.answers()


# What is counted in the database and in the files, apart from what the pipeline says of itself


def notifications() -> Counter[tuple[str, str]]:
    """Return how many of the campaign's notifications there are by channel and status."""
    ours = Notification.objects.filter(tenant=TENANT).order_by()
    rows = ours.values_list("channel", "status").annotate(count=Count("pk"))
    return Counter({(channel, status): count for channel, status, count in rows})


def dead() -> int:
    return DeadLetter.objects.filter(kind=vouchers.kind).count()


def attempts() -> int:
    return CallbackAttempt.objects.filter(topic=ORDERS_TOPIC).count()


def _is_quiet() -> bool:
    """Return whether everything that came in has ended."""
    open_ones = Notification.objects.filter(tenant=TENANT, status__in=OPEN_STATUSES)
    return not open_ones.exists() and not Message.objects.filter(kind=vouchers.kind).exists()


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
    name = f"archived {table['source'].rpartition('_')[2]}"
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
    # Counted before the archiving: by channel and status, by voucher, dead vouchers.
    notifications: Counter[tuple[str, str]]
    expired: Counter[str]
    dead: int
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
    wanted = {
        **facts.campaign,
        "created": 0,
        "updated": 0,
        "ignored": created + facts.campaign["ignored"],
    }
    is_same = all(facts.again[name] == wanted[name] for name in ("input", *PARTS))
    said = f"{facts.again['created']:,} created, {facts.again['ignored']:,} were there"
    yield Check("imported again", is_same, said)
    offered, expired = facts.vouchers["created"], facts.expired
    lost = offered - len(expired) - facts.dead
    said = f"{offered:,} offered, {len(expired):,} expired, {facts.dead:,} dead letters"
    yield Check(f"vouchers lost {lost}", not lost, said)
    twice = sorted(number for number, times in expired.items() if times > 1)
    yield none_of("expired twice", twice, "one row for each voucher")
    yield _report(facts)


def _adds_up(name: str, answer: dict[str, Any], lines: int) -> Check:
    said = ", ".join(f"{answer[part]:,} {part}" for part in PARTS if answer[part])
    is_whole = sum(answer[part] for part in PARTS) == answer["input"] == lines
    return Check(f"{name} adds up", is_whole, f"{lines:,} records: {said}")


def _report(facts: Facts) -> Check:
    """Compare with the database how many the report says ended, and how many of them well."""
    wanted: dict[str, list[int]] = {}
    for (channel, status), count in facts.notifications.items():
        ended = wanted.setdefault(channel, [0, 0])
        ended[0] += count
        ended[1] += count if status == Status.SUCCESSFULLY_PROCESSED else 0
    if facts.dead:
        wanted[vouchers.kind] = [facts.dead, 0]
    said = {each["kind"]: [each["messages"], each["done"]] for each in facts.report["kinds"]}
    wrong = sorted(kind for kind, counts in wanted.items() if said.get(kind) != counts)
    shown = ", ".join(f"{kind} {ended:,}" for kind, (ended, _) in sorted(wanted.items()))
    text = f"{shown}: as counted in the database, and {len(facts.plots)} plots"
    return none_of("report wrong", wrong, text, and_also=bool(facts.plots))
