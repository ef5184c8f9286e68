"""The act of the jobs: real servers and workers (J15)."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import call_command

from delayed_queue.models import DeadLetter, Message
from example_project.demo.jobs import DEAF, ORDERS, PAYMENTS

pytestmark = pytest.mark.usefixtures("demo_database")


@pytest.mark.long
@pytest.mark.slow
def test_the_three_scenarios_end_as_they_should():
    out = io.StringIO()
    call_command("demo", "jobs", "--format", "json", stdout=out, stderr=io.StringIO())
    report = json.loads(out.getvalue())["acts"]["jobs"]
    assert report["passed"] is True
    # More if a payment met the call in flight: delivered before its DELETE was answered.
    assert report["paid"] + report["closed"] >= ORDERS
    assert report["refunds"] == 40
    assert report["reported"] == PAYMENTS
    assert report["kicked"] == DEAF
    assert not Message.objects.filter(kind__endswith="|callback").exists()
    assert not DeadLetter.objects.filter(kind__endswith="|callback").exists()
