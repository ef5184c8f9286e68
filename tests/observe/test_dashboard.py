"""The dashboard and the alerts use existing metrics and labels (O7)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml
from django.test import Client
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from delayed_queue import DelayedQueue, Envelope
from delayed_queue.observe.metrics import PrometheusInstrument, QueueCollector, exposition
from delayed_queue.worker.engine.worker import Worker
from delayed_queue.worker.options import WorkerOptions
from tests.support import documents
from tests.support.concurrency import raw_connection
from tests.support.factories import worker_row
from tests.support.instruments import registry_of
from tests.support.processes import ROOT

FOLDER: Final = ROOT / "docs" / "operations" / "monitoring"
METRIC: Final = re.compile(r"(delayed_queue_\w+)(?:\{([^}]*)\})?")
MATCHER: Final = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
GROUPING: Final = re.compile(r"\b(?:by|on) \(([^)]*)\)")
# Further series of every histogram.
PARTS: Final = ("_created", "_sum", "_count", "_bucket")


def dashboard() -> Any:
    return json.loads((FOLDER / "dashboard.json").read_text())


def rules() -> Any:
    [group] = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return group["rules"]


def expressions() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (rule["expr"] for rule in rules())


def asked() -> Iterator[tuple[str, set[str]]]:
    """Yield each metric of an expression, and the labels of its selector."""
    for expression in expressions():
        for name, matchers in METRIC.findall(expression):
            yield name, set(MATCHER.findall(matchers))


@pytest.fixture
def served(transactional_db: None, settings: Any) -> dict[str, set[str]]:
    """The labels of each metric in the exposition of a worker."""
    settings.DELAYED_QUEUE = {"INSTRUMENTS": [PrometheusInstrument(REGISTRY)]}
    for key in ("fails", "passes"):
        DelayedQueue("orders").offer_or_update(key, key)

    def handle(envelope: Envelope) -> None:
        if envelope.key == "fails":
            raise ValueError

    Worker(WorkerOptions(burst=True), registry_of(orders=handle)).run()
    running = {"queue": "q", "key": "k", "thread": "t", "seconds": 1.0, "is_slow": False}
    worker_row(scanned="orders", scan_seconds=0.1, running=running)
    with raw_connection() as holder:
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        body, _ = exposition(QueueCollector())
    return {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
        if sample.name.startswith("delayed_queue_")
    }


def test_o28_each_alert_names_a_page_and_a_command(admin_client: Client) -> None:
    for rule in rules():
        found = rule["annotations"]
        assert admin_client.get(found["page"]).status_code == 200, found
        assert found["command"].startswith("python manage.py queue"), found


def test_each_metric_exists_and_has_the_labels(served: dict[str, set[str]]) -> None:
    for name, labels in asked():
        # A counter without a value has no series yet; "dead" counts as "failed" does.
        of = name.replace("_dead_total", "_failed_total")
        assert of in served, name
        assert labels <= served[of], name


def test_what_is_grouped_by_is_a_label_of_all_that_is_grouped(served: dict[str, set[str]]) -> None:
    for expression in expressions():
        grouped = {
            label.strip() for each in GROUPING.findall(expression) for label in each.split(",")
        }
        for name, _ in METRIC.findall(expression):
            of = name.replace("_dead_total", "_failed_total")
            assert grouped <= served[of], expression


def test_every_metric_is_on_the_dashboard(served: dict[str, set[str]]) -> None:
    shown = {name for name, _ in asked()}
    left = {each for each in served if not each.endswith(PARTS)} - shown
    assert left == set()


@pytest.mark.usefixtures("transactional_db")
def test_w18_the_autoscaling_recipe_counts_due_and_leased() -> None:
    """With due messages as the only measure, busy workers would be removed."""
    guide = documents.DOCS / "guides" / "monitoring.md"
    [recipe] = [block for block in documents.blocks(guide, "yaml") if "triggers" in block.text]
    [trigger] = yaml.safe_load(recipe.text)["triggers"]
    assert trigger["type"] == "prometheus"
    assert int(trigger["metadata"]["threshold"]) > 0
    query = trigger["metadata"]["query"]
    [(name, matchers)] = METRIC.findall(query)
    assert 'state=~"due|leased"' in matchers
    # max, since several workers or views serve the same counts; sum adds up both states.
    assert query.startswith("sum(max by (state) (")
    DelayedQueue("orders").offer_or_update("k", 1)
    states = {
        sample.labels["state"]
        for family in QueueCollector(["orders"]).collect()
        for sample in family.samples
        if sample.name == name
    }
    assert {"due", "leased"} <= states
    shell = [each for each in documents.blocks(guide, "shell") if "kubectl scale" in each.text]
    assert [".due + .leased" in each.text for each in shell] == [True]
