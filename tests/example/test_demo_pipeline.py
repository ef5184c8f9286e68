"""The act of the pipeline: real Spark and real workers."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from delayed_queue.models import DeadLetter, Message
from delayed_queue.notifications.models import Notification
from delayed_queue.spark.pipeline import session
from example_project.demo.jobs import JobsAct
from example_project.demo.notifications import NotificationsAct
from example_project.demo.orders import OrdersAct
from example_project.demo.pipeline import PipelineAct
from example_project.demo.report import Outcome, Row
from example_project.demo.stage import Act, Stage
from example_project.models import ExpiredVoucher


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
def test_the_campaign_comes_in_and_the_archive_and_the_report_go_out(tmp_path, monkeypatch):
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
