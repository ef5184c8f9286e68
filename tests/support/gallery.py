"""A site with rows on each admin page, and names as long as in production."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import cycle, islice
from typing import Any, Final
from uuid import UUID

from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import RequestFactory
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode

from delayed_queue import DelayedQueue, Envelope, Groups, ScheduledMessage
from delayed_queue.http.models import ApiToken, CallbackAttempt, Endpoint, Host, Topic
from delayed_queue.messages import to_milliseconds
from delayed_queue.models import Limit, Message, Sample, Schedule, ScheduleRun, Worker
from delayed_queue.notifications import models as notifications
from delayed_queue.observe.store import last_sampled
from delayed_queue.queue.bulk import BulkPlan
from delayed_queue.spark.models import PipelineReport
from delayed_queue.tasks.ids import id_at
from delayed_queue.tasks.models import TaskResult
from delayed_queue.tasks.priorities import kind_of_priority
from delayed_queue.tasks.serving import servings
from example_project.models import Closing, Delivery, Invoice, Order, SalesReport
from tests.notifications.factories import enqueue
from tests.support.factories import DeadLetterFactory, MessageFactory, from_now

QUEUES: Final = (
    "close-unpaid-orders", "notifications-critical-webhook", "sales-reports",
    "a-service-with-a-rather-long-name.invoices-to-be-exported.v2",
)  # fmt: skip
GROUPED: Final = "statements-of-tenants-in-order"
KEYS: Final = ("SALE-00042", "5f0c6a1e-3c5b-4b0e-9a51-8f1f9d2d8c11", "order/" + "x" * 194)
TRACEBACK: Final = (
    'Traceback (most recent call last):\n  File "/srv/shop/orders/handlers.py", line 48, in '
    "close_if_unpaid\n    gateway.refund(order, timeout=3)\n"
    + "example_project.gateway.GatewayTimeout: the gateway did not answer within three seconds"
)
FAILED: Final = "attempts exhausted: example_project.gateway.GatewayTimeout"
PIXEL: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg"
    "=="
)
TOPIC: Final = "orders-to-be-closed"
PARTNER: Final = "partners.with-a-long-name.example.com"
TENANT: Final = "a-tenant-with-a-rather-long-name"
CUSTOMER: Final = "Maximiliane von Hohenstein-Oppenheim"
SPANS: Final = {"p50": 0.25, "p90": 1.0, "p95": 90.0, "p99": 7200.0, "max": 86400.0}


def furnish() -> None:
    """Insert rows into each table that has a page."""
    for part in PARTS:
        part()


def _queues() -> None:
    states = ("due", "scheduled", "leased", "expired")
    for number, (queue, state) in enumerate(
        islice(zip(cycle(QUEUES), cycle((*states, "due")), strict=False), 60)
    ):
        key = f"{number}-{KEYS[number % 3]}"[:200]
        errors = {"first_error": TRACEBACK, "last_error": TRACEBACK} if state == "expired" else {}
        MessageFactory.create(
            kind=f"{queue}|json", key=key, headers={"trace": "x" * 80}, **{state: True}, **errors
        )
        if number < 30:
            DeadLetterFactory.create(
                kind=f"{queue}|json", key=key, reason=FAILED, first_error=TRACEBACK
            )
    BulkPlan("redrive", f"{QUEUES[0]}|json", pace=50, canary=3).start(by="operator@example.org")
    with DelayedQueue(QUEUES[3]).batch(ScheduledMessage(KEYS[2], {"n": 7})) as batch:
        batch.offer_batch([ScheduledMessage(f"{each}-{KEYS[1]}", None) for each in range(30)])
    Limit.objects.create(
        kind=f"{QUEUES[0]}|json", paused_at=from_now(hours=-3), paused_by="operator@example.org",
        reason="The gateway is being moved; it is back at four, says the provider's status page.",
    )  # fmt: skip


def _workers() -> None:
    leased = Message.objects.exclude(lease_id=None).values_list("lease_id", flat=True)
    for number in range(3):
        Worker.objects.create(
            name="runqueueworker", host=f"ip-10-20-30-{number}.eu-central-1.compute.internal",
            pid=1_234_567, process=number, queues=list(QUEUES), version="1.2.3.dev45",
            started_at=from_now(days=-3), heartbeat_at=from_now(seconds=1800 - 2400 * number),
            running={"queue": QUEUES[3], "key": KEYS[1], "thread": "handler-12", "seconds": 4321.5,
                     "is_slow": True} if number == 0 else {}, slow=int(number == 0),
            busy={QUEUES[3]: 6, QUEUES[0]: 2}, threads=8, memory=734_003_200,
            in_flight=62, done=12_345_678, failed=12_345, dead=123, lost=7,
            rates=dict.fromkeys(QUEUES, 123.4),
            holder=str(leased[number])[:8],
        )  # fmt: skip


def _samples() -> None:
    """A day of one queue with a gap, a burst, a deploy and failures; an hour of the others."""
    now, _ = last_sampled()
    for back in range(1, 1441):
        if 20 < back < 28:
            continue
        version = "1.2.2" if back > 40 else "1.2.3"
        Sample.objects.create(kind="", minute=now - back, versions=version, times=[])
        wave = 1 + math.sin(back / 9)
        for number, queue in enumerate(QUEUES[: 4 if back <= 60 else 1]):
            due = int(400 * wave) if number else max(12_000 - 150 * back, 0)
            Sample.objects.create(
                kind=f"{queue}|json", minute=now - back, due=due, scheduled=1200 + back,
                leased=40, dead=number, late=int(80 * wave), done=int(300 + 200 * wave),
                failed=back % 7, died=int(back % 30 == 0),
                times=[(8 << 25) + 300, (12 << 25) + 20, (40 << 25) + 290, (44 << 25) + 9],
            )  # fmt: skip


def _schedules() -> None:
    for prefix, is_enabled in (
        ("nightly", True),
        ("hourly-sales-report-for-the-back-office", False),
    ):
        row = Schedule.objects.create(
            kind=f"{QUEUES[3]}|json", queue=QUEUES[3], key_prefix=prefix, type="cron",
            expression="*/5 8-18 * * mon-fri", timezone="America/Argentina/Buenos_Aires",
            payload={"n": 1}, is_enabled=is_enabled,
        )  # fmt: skip
        for number, outcome in enumerate(islice(cycle(("done", "failed", "dead")), 10)):
            at = from_now(minutes=-5 * number - 5)
            ScheduleRun.objects.create(
                schedule=row, key=f"{prefix}/{number}", planned_at=at, started_at=at,
                finished_at=at + timedelta(seconds=number * 37), outcome=outcome, attempts=number,
                worker="ip-10-20-30-0.eu-central-1.compute.internal:1234567",
            )  # fmt: skip


def _topics() -> None:
    now = datetime.now(UTC)
    Topic.objects.create(name=TOPIC, shards=8, created_at=now)
    Topic.objects.create(name="refunds", created_at=now)
    for number, name in enumerate(("billing", "a partner with a name of some length, read only")):
        ApiToken.objects.create(
            name=name, prefix=f"dq_abcdef{number}", digest=f"{number:064}", created_at=now,
            topics=[TOPIC, "refunds"], verbs=["read", "add", "pop"], rate=50, burst=100,
            last_used_at=now, expires_at=from_now(days=30),
        )  # fmt: skip


def _callbacks() -> None:
    now = datetime.now(UTC)
    for number in range(12):
        is_lost = number % 3 == 0
        CallbackAttempt.objects.create(
            key=KEYS[number % 3], topic=TOPIC, kind=f"{TOPIC}|callback", attempt=number + 1,
            webhook_id=f"msg_{number:032}", started_at=now, duration=5012, endpoint_id=1,
            address="2001:db8:85a3::8a2e:370:7334", excerpt="<html>" * 30,
            status=None if is_lost else 200, is_ambiguous=number == 3,
            failure="connect_timeout" if is_lost else "", detail="no answer within 5 s",
        )  # fmt: skip
    for origin, limits in (
        ("https://example.com", {}),
        (f"https://{PARTNER}", {"per_second": 12.5, "burst": 10, "concurrency": 4}),
    ):
        Endpoint.objects.create(
            origin=origin, prefix=f"{origin}/hooks/delayed-queue/v1/orders", secret="",
            created_at=now, disabled_at=now if limits else None,
            disabled_reason="410 Gone, three times" if limits else "", **limits,
        )  # fmt: skip


def _hosts() -> None:
    why = "503 Service Unavailable from upstream connect error or disconnect/reset before headers"
    for name, since, until in (
        ("example.com:443", from_now(minutes=-1), from_now(minutes=9)),
        (f"{PARTNER}:443", from_now(minutes=-9), from_now(seconds=-5)),
        ("back-again.example.com:8443", None, None),
    ):
        openings = 0 if since is None else 3
        Host.objects.create(
            name=name, opened_at=since, open_until=until, openings=openings, reason=why
        )


def _pipeline() -> None:
    PipelineReport.objects.create(
        created_at=datetime(2026, 5, 1, 12, tzinfo=UTC),
        figures={
            "created_at": "2026-05-01T12:00:00+00:00", "since": "2026-04-01T00:00:00+00:00",
            "kinds": [
                {"kind": f"{queue}|json", "messages": 1_234_567, "done": 1_234_000, "dead": 567,
                 "failure_rate": 0.0275, "redelivery_rate": 0.5, "lateness_seconds": SPANS,
                 "latency_seconds": SPANS}
                for queue in QUEUES
            ],
            "reasons": [{"kind": f"{QUEUES[3]}|json", "reason": FAILED, "messages": 34}],
            "backlog": [{"kind": f"{QUEUES[3]}|json", "due": 7, "hours": [1] * 24, "later": 9}],
        },
        plots={"lateness": PIXEL},
    )  # fmt: skip


def _shop() -> None:
    for number in range(30):
        Order.objects.create(
            order_id=f"{number}-{KEYS[number % 3]}"[:200], customer=CUSTOMER,
            amount=Decimal("1234567.89"), currency="EUR", created_at=from_now(days=-2),
            close_at=from_now(hours=number), paid_at=from_now() if number % 2 else None,
            state="paid" if number % 2 else "open",
        )  # fmt: skip
        Delivery.objects.create(
            order_id=f"{number}-{KEYS[number % 3]}"[:200], attempt=2, delivery_type="redelivery",
            due_at=from_now(), worker=1_234_567,
        )  # fmt: skip
    Closing.objects.create(order_id=KEYS[1], attempt=1, worker=1_234_567)
    Invoice.objects.create(order_id=KEYS[1], text="Order, 1,234,567.89 EUR, thank you")
    SalesReport.objects.create(
        key="hourly/1",
        planned_at=from_now(),
        closed=1_234,
        amount=Decimal("12345678.90"),
        worker=1_234_567,
    )


def _notifications() -> None:
    state = notifications.Status
    for number, channel in enumerate(islice(cycle(notifications.Channel.values), 24)):
        row = enqueue(
            channel=channel, tenant=TENANT, subject="Your order " * 5,
            recipient="maximiliane.von.hohenstein-oppenheim@a-long-domain.example.org",
        )  # fmt: skip
        if number % 3:
            notifications.Notification.objects.filter(pk=row.pk).update(
                status=state.FAILED if number % 2 else state.SUCCESSFULLY_PROCESSED, attempts=4,
                ended_at=from_now(), provider="sms-provider-of-last-resort",
                outcome="attempts exhausted: ProviderTimeout", error_class="ProviderTimeout",
                delivery="bounced" if number % 5 else "complained", delivery_at=from_now(),
            )  # fmt: skip
        notifications.Delivery.objects.create(
            notification=row, attempt=1, provider="sms-provider-of-last-resort", outcome="failed",
            error_class="ProviderTimeout", duration_ms=5012, detail="503 Service Unavailable " * 10,
        )  # fmt: skip
    _rest_of_notifications()


def _rest_of_notifications() -> None:
    notifications.Template.objects.create(
        name="order-confirmation-with-invoice", channel="email", version=1,
        subject="Your order {{ id }}", body="Hello, {{ name }}. " * 20, category="transactional",
    )  # fmt: skip
    notifications.Suppression.objects.create(
        channel="email", recipient_hash=b"\x01" * 16, category="offers"
    )
    notifications.ParkedRequest.objects.create(
        digest=b"\x01" * 32, origin="notifications.requests.v1", tenant=TENANT, times=12_345,
        message_id=str(UUID(int=7)), content_type="application/json",
        body=b'{"channel": "pigeon"}' * 20, errors=[{"path": "channel", "message": "no"}],
        reason="channel: 'pigeon' is not one of email, sms, webhook",
    )  # fmt: skip


def _tasks() -> None:
    statuses = (*TaskResult.Status.values, "SUCCESSFUL")
    for number, status in enumerate(islice(cycle(statuses), 30)):
        at = to_milliseconds(timezone.now()) - number * 60_000
        error = {"exception_class_path": "shop.errors.GatewayTimeout", "traceback": TRACEBACK}
        TaskResult.objects.create(
            id=id_at(at), task="shop.tasks.send_the_monthly_statement", backend="default",
            kind="statements-and-reminders|json", status=status, enqueued_at=at, scheduled_at=at,
            payload=b'{"args": [4711], "kwargs": {"format": "pdf"}}',
            started_at=at, last_attempted_at=at, finished_at=at if status else None,
            errors=[error] * (status != "SUCCESSFUL"), worker_ids=["worker-1"],
            return_value={"pages": 12} if status == "SUCCESSFUL" else None,
            metadata={"progress": 0.4, "message": "5 of 12 pages"},
        )  # fmt: skip


def _tasks_under_way() -> None:
    for number, state in enumerate(("due", "scheduled", "leased") * 10):
        at = to_milliseconds(timezone.now()) - number
        MessageFactory.create(
            kind=kind_of_priority(next(iter(servings)), 0), key=id_at(at), **{state: True},
            payload=b'{"args": [4711], "task": "shop.tasks.send_the_monthly_statement"}',
        )  # fmt: skip


def _groups() -> None:
    """Some tens of groups blocked for each reason, and some with their own limits."""
    queue = DelayedQueue(GROUPED)
    groups = [f"tenant-{number:02}-{reason}" for number in range(12) for reason in REASONS]
    queue.offer_batch(
        [ScheduledMessage(f"{each}/{n}", None, group=each) for each in groups for n in range(2)]
    )
    queue.groups.set(Groups(order="fifo", on_dead="block", rate="1/d", queue_rate="600/m",
                            queue_burst=100))  # fmt: skip
    for envelope in queue.try_poll_many(len(groups)):
        REASONS[str(envelope.group).rpartition("-")[2]](queue, envelope)
    queue.groups.limit(groups[0], concurrency=20, weight=3, rate="10/s", burst=5)
    queue.groups.limit("a-customer-with-a-rather-long-name." + "x" * 60, weight=10_000)


REASONS: Final[dict[str, Callable[[DelayedQueue, Envelope], object]]] = {
    "full": lambda queue, envelope: None,
    "waiting": lambda queue, envelope: envelope.release(delay=timedelta(hours=1)),
    "throttled": lambda queue, envelope: envelope.acknowledge(),
    "blocked": lambda queue, envelope: envelope.reject(FAILED),
    "paused": lambda queue, envelope: queue.groups.pause(
        str(envelope.group), "they move house until Monday, ticket 4711", by="maximiliane"
    ),
}


PARTS: Final = (
    _groups, _queues, _workers, _samples, _schedules, _topics, _callbacks, _hosts, _pipeline, _shop,
    _notifications, _tasks, _tasks_under_way,
)  # fmt: skip


def pages() -> dict[str, str]:
    """Return the path of each page of the admin by a name for it."""
    found = {"index": reverse("admin:index"), "queues": reverse("admin:delayed_queue_queues"),
             "failures-queues": reverse("admin:delayed_queue_failures"),
             "at-a-glance": reverse("admin:delayed_queue_notifications_dashboard")}  # fmt: skip
    provider = "delayed_queue_notifications_provider"
    found["provider"] = reverse(f"admin:{provider}", args=["sms-provider-of-last-resort"])
    for span, queue in (("1h", QUEUES[3]), ("24h", QUEUES[0])):
        query = urlencode({"kind": f"{queue}|json", "range": span})
        found[f"history-{span}"] = f"{reverse('admin:delayed_queue_history')}?{query}"
    query = urlencode({"task": "shop.tasks.send_the_monthly_statement"})
    found["tasks-charts"] = f"{list_of(TaskResult)}?{query}"
    query = urlencode({"kind": f"{GROUPED}|json"})
    found["history-groups"] = f"{reverse('admin:delayed_queue_history')}?{query}"
    for app in {model._meta.app_label for model, _ in _shown()}:
        found[f"app-{app}"] = reverse("admin:app_list", args=[app])
    for model, model_admin in _shown():
        found |= _pages_of(model, model_admin)
    return found


def list_of(model: Any) -> str:
    """Return the path of a model's list."""
    return reverse(f"admin:{_name_of(model)}_changelist")


def operations() -> list[tuple[str, Any]]:
    """Return the actions of the lists, each with the path of its list."""
    return [
        (list_of(model), each)
        for model, model_admin in _shown()
        for each in getattr(model_admin, "operations", ())
    ]


def _shown() -> list[tuple[Any, Any]]:
    models = [each for each in apps.get_models() if admin.site.is_registered(each)]
    return [
        (each, admin.site.get_model_admin(each))
        for each in models
        if each._meta.app_label != "auth" and each._meta.model_name != "queueoverview"
    ]


def _name_of(model: Any) -> str:
    return f"{model._meta.app_label}_{model._meta.model_name}"


def forbidden() -> set[str]:
    """Return the names of forbidden URLs: forms for rows that the admin does not create."""
    return {
        f"{_name_of(model)}_{page}"
        for model, model_admin in _shown()
        for page in ("add", "delete")
        if not _may(model_admin, page)
    }


def _may(model_admin: Any, page: str) -> bool:
    # The confirmation for rows of the shop is Django's own, which fails on keys of our length.
    if page == "delete" and model_admin.opts.app_label == "example_project":
        return False
    request = RequestFactory().get("/")
    request.user = User(is_superuser=True, is_active=True)
    return bool(getattr(model_admin, f"has_{page}_permission")(request))


def _pages_of(model: Any, model_admin: Any) -> dict[str, str]:
    name, row = _name_of(model), model_admin.get_queryset(RequestFactory().get("/")).first()
    assert row is not None, f"no {name} to show"
    of_one = ["change", "history"] + ["delete"] * _may(model_admin, "delete")
    found = {f"{name}-{page}": reverse(f"admin:{name}_{page}", args=[row.pk]) for page in of_one}
    found[f"{name}-list"] = list_of(model)
    if _may(model_admin, "add"):
        found[f"{name}-add"] = reverse(f"admin:{name}_add")
    return found
