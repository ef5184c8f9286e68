"""The act of the notifications: real processes and providers (N11)."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import call_command

from delayed_queue.models import Message
from delayed_queue.notifications import intake
from delayed_queue.notifications.models import FINAL_STATUSES, Notification, ParkedRequest
from example_project.demo import notifications
from example_project.demo.notifications import KINDS, SENT, TENANT
from example_project.samples import read_samples, set_up

pytestmark = pytest.mark.usefixtures("demo_database")


@pytest.mark.slow
def test_everything_asked_for_ends_as_it_should_though_a_dispatcher_is_killed():
    out, err = io.StringIO(), io.StringIO()
    options = ["--notifications", "400", "--format", "json"]
    call_command("demo", "notifications", *options, stdout=out, stderr=err)
    report = json.loads(out.getvalue())["acts"]["notifications"]
    assert report["passed"] is True, report["checks"]
    assert {"unsubscribed", "bounced"} <= {each["name"] for each in report["checks"]}

    stored = Notification.objects.filter(tenant=TENANT)
    assert set(stored.values_list("status", flat=True)) <= set(FINAL_STATUSES)
    assert report["requests"] == 400
    wrong = [each for each in list(read_samples())[:400] if each.kind == "wrong"]
    assert report["refused"] >= len(wrong) > 10
    parked = {int(id_) for id_ in ParkedRequest.objects.values_list("message_id", flat=True)}
    assert parked >= {each.number for each in wrong if each.via == "broker"}
    assert report["sent"] == stored.filter(status=SENT).count() > 250
    assert report["failed_over"] > 0
    assert report["retried"] > 0
    assert not Message.objects.filter(kind__in=KINDS).exists()
    assert "replaces it" in err.getvalue()


def test_a_run_begins_by_clearing_what_was_left():
    set_up()
    request = {"channel": "email", "to": "ada@example.org", "subject": "a", "body": "b"}
    for tenant in (TENANT, "somebody"):
        intake.accept([request], tenant=tenant)
    notifications.NotificationsAct().clear()
    [left] = Notification.objects.all()
    assert left.tenant == "somebody"
    assert [each.key for each in Message.objects.filter(kind__in=KINDS)] == [str(left.id)]
