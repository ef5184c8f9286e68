"""What is counted in the database and in the files, apart from what the pipeline says of itself."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from django.db import transaction
from django.db.models import Count

from delayed_queue.models import ArchiveManifest, CallbackAttempt, DeadLetter, Message
from delayed_queue.queues import DROP_ALL_CONFIRMATION
from example_project.demo.jobs.orders import TOPIC
from example_project.models import ExpiredVoucher
from example_project.notifications.models import (
    OPEN_STATUSES,
    DedupeClaim,
    Delivery,
    Notification,
    queue_name,
)
from example_project.shop import vouchers

TENANT: Final = "demo-spring"
LAKE_PREFIX: Final = "delayed-queue-demo-lake-"
LANES: Final = [queue_name("bulk", channel) for channel in ("email", "sms")]
CHUNK: Final = 1000


@dataclass(frozen=True, slots=True)
class Before:
    """What there is to archive, by table."""

    notifications: Counter[tuple[str, str]]
    dead: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Archived:
    """A table that was archived: what was to be, what the command says, what is there."""

    source: str
    expected: int
    rows: int
    deleted: int
    left: int
    in_files: int
    wrong_files: tuple[str, ...]
    unfinished: int


def notifications() -> Counter[tuple[str, str]]:
    """Return how many of the campaign's notifications there are by channel and status."""
    ours = Notification.objects.filter(tenant=TENANT).order_by()
    rows = ours.values_list("channel", "status").annotate(count=Count("pk"))
    return Counter({(channel, status): count for channel, status, count in rows})


def is_quiet() -> bool:
    """Return whether everything that came in has ended."""
    open_ones = Notification.objects.filter(tenant=TENANT, status__in=OPEN_STATUSES)
    return not open_ones.exists() and not Message.objects.filter(kind=vouchers.kind).exists()


def waiting() -> int:
    """Return how many vouchers are still to expire."""
    return Message.objects.filter(kind=vouchers.kind).count()


def ids() -> list[Any]:
    return list(Notification.objects.filter(tenant=TENANT).values_list("pk", flat=True))


def expired() -> Counter[str]:
    """Return how often each voucher has expired."""
    return Counter(ExpiredVoucher.objects.values_list("number", flat=True))


def before() -> Before:
    return Before(notifications(), dead(), attempts())


def dead() -> int:
    return DeadLetter.objects.filter(kind=vouchers.kind).count()


def attempts() -> int:
    return CallbackAttempt.objects.filter(topic=TOPIC).count()


def archived(answer: dict[str, Any], expected: int, left: int, lake: Path) -> Archived:
    """Compare what the command answers with its manifests and files."""
    [table] = answer["tables"]
    made = ArchiveManifest.objects.filter(source=table["source"], destination=str(lake))
    pruned = [each for each in made if each.state == ArchiveManifest.State.PRUNED]
    wrong, rows = _files(made, lake)
    return Archived(
        source=table["source"],
        expected=expected,
        rows=table["rows"],
        deleted=table["deleted"],
        left=left,
        in_files=rows,
        wrong_files=tuple(wrong),
        unfinished=len(made) - len(pruned),
    )


def _files(manifests: Iterable[ArchiveManifest], lake: Path) -> tuple[list[str], int]:
    """Return the files that are not those of a manifest, and how many rows all have."""
    # Here: what it is for needs Spark anyway.
    import pyarrow.parquet as pq

    wrong, rows = [], 0
    for manifest in manifests:
        directory = lake / manifest.source / f"archive={manifest.pk:08d}"
        said = {each["name"]: each["sha256"] for each in manifest.files}
        found = {each.name: sha256(each) for each in directory.glob("*.parquet")}
        wrong += sorted(name for name in {*said, *found} if said.get(name) != found.get(name))
        rows += sum(pq.read_metadata(each).num_rows for each in directory.glob("*.parquet"))
    return wrong, rows


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@transaction.atomic
def clear() -> None:
    """Delete what an earlier run left, also of an archive that it did not finish."""
    ours = ids()
    _forget_deliveries(ours)
    kinds = [f"{lane}|json" for lane in LANES]
    for start in range(0, len(ours), CHUNK):
        keys = [str(each) for each in ours[start : start + CHUNK]]
        Message.objects.filter(kind__in=kinds, key__in=keys).delete()
        DeadLetter.objects.filter(kind__in=kinds, key__in=keys).delete()
    Notification.objects.filter(tenant=TENANT).delete()
    DedupeClaim.objects.filter(tenant=TENANT).delete()
    vouchers.drop_all_messages(DROP_ALL_CONFIRMATION)
    DeadLetter.objects.filter(kind=vouchers.kind).delete()
    ExpiredVoucher.objects.all().delete()
    ArchiveManifest.objects.filter(destination__contains=f"/{LAKE_PREFIX}").delete()


def forget_deliveries(ours: list[Any]) -> None:
    """Delete the calls of providers of notifications that are archived."""
    with transaction.atomic():
        _forget_deliveries(ours)


def _forget_deliveries(ours: list[Any]) -> None:
    for start in range(0, len(ours), CHUNK):
        Delivery.objects.filter(notification_id__in=ours[start : start + CHUNK]).delete()
