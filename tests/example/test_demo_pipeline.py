"""The act of the pipeline: real Spark, real workers, and checks that can fail."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.core.management import CommandError, call_command

from delayed_queue.models import DeadLetter, Message
from delayed_queue.notifications.models import Notification
from delayed_queue.spark.models import ArchiveManifest
from delayed_queue.spark.pipeline import session
from example_project.data import make_campaign, make_vouchers
from example_project.demo.jobs import JobsAct
from example_project.demo.notifications import NotificationsAct
from example_project.demo.orders import OrdersAct
from example_project.demo.pipeline import Facts, PipelineAct, check_archive, checks
from example_project.demo.report import Check, Outcome, Row
from example_project.demo.stage import Act, Stage
from example_project.models import ExpiredVoucher


def answer(**changes: int) -> dict[str, Any]:
    parts = {"created": 93, "updated": 0, "ignored": 0, "duplicates": 4, "quarantined": 3}
    return {"input": 100, **parts, "was_done": False, **changes}


VOUCHERS = [f"voucher-{number}" for number in range(46)]


def counts(**changes: int) -> Counter[tuple[str, str]]:
    """Return the notifications of a good run, with the given numbers of texts."""
    return Counter(
        {
            ("email", "SUCCESSFULLY_PROCESSED"): 60,
            ("email", "CANCELLED"): 10,
            **{
                ("sms", status): n
                for status, n in ({"SUCCESSFULLY_PROCESSED": 20} | changes).items()
            },
        }
    )


@pytest.fixture
def good() -> Facts:
    kinds = [{"kind": "vouchers|json", "dead": 2}, {"kind": "another|json", "dead": 1}]
    return Facts(
        campaign=answer(),
        again=answer(was_done=True),
        vouchers=answer(input=50, created=48, duplicates=0, quarantined=2),
        notifications=counts(),
        refused=3,
        expired=VOUCHERS,
        dead=2,
        report={"kinds": kinds},
        plots=["lateness.png"],
        lines=100,
        records=50,
    )


def failed(facts: Facts) -> list[str]:
    return [each.name for each in checks(facts) if not each.passed]


def test_a_good_run_passes_every_check(good: Facts):
    assert failed(good) == []


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"lines": 101}, "campaign adds up"),
        (
            {"campaign": answer(updated=1), "again": answer(updated=1, was_done=True)},
            "campaign adds up",
        ),
        ({"records": 51}, "vouchers add up"),
        ({"again": answer()}, "second import"),
        ({"again": answer(was_done=True, quarantined=2, duplicates=5)}, "second import"),
        ({"refused": 2}, "campaign finished"),
        ({"expired": VOUCHERS[1:]}, "no voucher lost"),
        ({"expired": [*VOUCHERS, VOUCHERS[0]]}, "none expired twice"),
        ({"plots": []}, "report is right"),
        ({"report": {"kinds": [{"kind": "vouchers|json", "dead": 3}]}}, "report is right"),
        ({"report": {"kinds": []}}, "report is right"),
        ({"notifications": counts(SUCCESSFULLY_PROCESSED=19)}, "campaign finished"),
        ({"notifications": counts(SUCCESSFULLY_PROCESSED=19, PROCESSING=1)}, "campaign finished"),
        ({"notifications": counts(SUCCESSFULLY_PROCESSED=19, FAILED=1)}, "campaign finished"),
    ],
)
def test_each_fault_fails_its_check(good: Facts, changes: dict[str, Any], name: str):
    assert failed(good._replace(**changes)) == [name]


# The files


def test_the_campaign_is_the_same_at_every_run_and_partly_bad():
    lines = list(make_campaign.lines())
    assert lines == list(make_campaign.lines())
    bad = sum(1 for number in range(make_campaign.COUNT) if number % make_campaign.BAD_EVERY == 79)
    assert (len(lines), len(set(lines)), bad) == (4008, 4000, 50)


def test_so_are_the_vouchers(tmp_path: Path):
    make_vouchers.write(tmp_path / "vouchers.parquet")
    numbers = pq.read_table(tmp_path / "vouchers.parquet").column("number").to_pylist()
    assert (len(numbers), numbers.count(None)) == (2000, 10)


@pytest.fixture
def manifest(tmp_path: Path) -> ArchiveManifest:
    """Return the archive report of 20 rows in two files."""
    directory = tmp_path / "letters" / "archive=1"
    directory.mkdir(parents=True)
    found = ArchiveManifest.objects.create(
        source="letters", path=str(directory), state="pruned", created_at=0
    )
    for name in ("a.parquet", "b.parquet"):
        make_vouchers.write(directory / name, 10)
    found.files = [
        {"name": each.name, "size": each.stat().st_size, "rows": 10, "checksum": 0}
        for each in directory.glob("*.parquet")
    ]
    found.save()
    return found


def archived(path: Path, expected: int = 20, left: int = 0, **said: int) -> Check:
    answer = {"tables": [{"source": "letters", "rows": 20, "deleted": 20, **said}]}
    return check_archive(answer, expected, left, path)


@pytest.mark.django_db
def test_an_archive_that_is_not_what_was_deleted_is_seen(tmp_path: Path, manifest: ArchiveManifest):
    assert archived(tmp_path).passed
    wrongs: list[dict[str, int]] = [{"rows": 19}, {"deleted": 21}, {"expected": 19}, {"left": 1}]
    assert not any(archived(tmp_path, **wrong).passed for wrong in wrongs)
    manifest.state = "written"
    manifest.save()
    assert not archived(tmp_path).passed


@pytest.mark.django_db
def test_a_file_that_was_changed_and_one_too_many_are_seen(
    tmp_path: Path, manifest: ArchiveManifest
):
    directory = Path(manifest.path)
    make_vouchers.write(directory / "b.parquet", 9)
    make_vouchers.write(directory / "c.parquet", 1)
    found = archived(tmp_path)
    assert not found.passed
    assert "20 rows in files" in found.statement
    assert "changed files: b.parquet, c.parquet" in found.statement


# The act


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(session, "find_spec", lambda name: None)


@pytest.mark.usefixtures("no_java")
def test_without_java_it_says_what_to_install():
    with pytest.raises(CommandError, match=r"cannot run.*apt-get install openjdk-17-jre-headless"):
        call_command("demo", "pipeline", stdout=io.StringIO(), stderr=io.StringIO())


@pytest.mark.usefixtures("no_java", "demo_database")
def test_without_java_the_other_acts_are_run_and_it_says_so(monkeypatch: pytest.MonkeyPatch):
    ran: list[str] = []

    def run(act: Act, stage: Stage) -> Outcome:
        ran.append(act.name)
        stage.codes.append(0)
        return Outcome([Row("acts", 1)], [])

    for each in (OrdersAct, JobsAct, NotificationsAct, PipelineAct):
        monkeypatch.setattr(each, "run", run)
    out, err = io.StringIO(), io.StringIO()
    call_command("demo", "all", "--format", "json", stdout=out, stderr=err)
    assert ran == ["orders", "jobs", "notifications"]
    assert "Without the act pipeline: Spark needs Java 17 or newer" in err.getvalue()
    assert list(json.loads(out.getvalue())["acts"]) == ran


def test_without_spark_there_must_be_another_act():
    with pytest.raises(CommandError, match="No act is left"):
        call_command("demo", "pipeline", "--no-spark")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("demo_database")
def test_the_campaign_comes_in_and_the_archive_and_the_report_go_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # The demo keeps these directories after its end.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    out, err = io.StringIO(), io.StringIO()
    call_command("demo", "pipeline", "--format", "json", stdout=out, stderr=err)
    act = json.loads(out.getvalue())["acts"]["pipeline"]
    assert act["passed"] is True
    assert act["campaign"] == 3950
    assert act["quarantined"] == 7 + 10
    assert ExpiredVoucher.objects.count() + act["dead"] == act["vouchers"]
    plots = list(Path(act["lake"], "report").glob("*.png"))
    assert {each.read_bytes()[:4] for each in plots} == {b"\x89PNG"}
    assert Path(act["lake"]).is_relative_to(tmp_path)
    assert "starting Java" in err.getvalue()
    for model in (Notification, Message, DeadLetter):
        assert not model.objects.exists()
