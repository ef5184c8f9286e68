"""Templates: lookups through a cache of 30 seconds, and new versions."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from django.db import transaction
from django.db.models import Max
from django.db.models.signals import post_delete, post_save
from django.db.transaction import TransactionManagementError
from django.dispatch import receiver
from django.template import TemplateSyntaxError

from delayed_queue.db.resilience import repeat
from delayed_queue.logs import log
from delayed_queue.notifications.models import Template
from delayed_queue.notifications.rendering import Compiled, compiled
from delayed_queue.notifications.services import USING, lock

# A process reads a template again after N seconds, so it uses a new version within that time.
CACHE_SECONDS: Final = 30.0
# A missing template is looked up again after N seconds: an operator may be about to add it.
MISSING_SECONDS: Final = 1.0
MAX_CACHED: Final = 1000

# By channel, name and version: the monotonic time of expiry, and the template.
_cache: Final[dict[tuple[str, str, int | None], tuple[float, Compiled | None]]] = {}


def find_template(channel: str, name: str, version: int | None) -> Compiled | None:
    """Return that version, by default the latest; None if it does not exist."""
    key = (channel, name, version)
    until, found = _cache.get(key, (0.0, None))
    read_at = time.monotonic()
    if read_at < until:
        return found
    # Reads: notification_template_version.
    rows = Template.objects.filter(name=name, channel=channel).order_by("-version")
    row = repeat(USING, (rows if version is None else rows.filter(version=version)).first)
    found = _compiled(row) if row else None
    # A version that the open transaction added may be rolled back.
    _after_commit(partial(_keep, key, read_at, found))
    return found


def _keep(key: tuple[str, str, int | None], read_at: float, found: Compiled | None) -> None:
    if len(_cache) >= MAX_CACHED:
        _cache.clear()
    seconds = MISSING_SECONDS if found is None else CACHE_SECONDS
    _cache[key] = read_at + seconds, found


def _after_commit(call: Callable[[], None]) -> None:
    # Django cannot call it for a caller that commits by hand.
    with suppress(TransactionManagementError):
        transaction.on_commit(call, using=USING)


def _compiled(template: Template) -> Compiled | None:
    try:
        return compiled(template)
    except TemplateSyntaxError as error:
        # It was not stored by ``add_version``, or by an earlier release with more tags.
        fields = {"channel": template.channel, "version": template.version}
        log(logging.ERROR, "template_broken", error, name=template.name, **fields)
        return None


@receiver([post_save, post_delete], sender=Template)
def forget_templates(**_: Any) -> None:
    """Empty this process's cache, now and at the commit."""
    _cache.clear()
    _after_commit(_cache.clear)


@transaction.atomic(using=USING)
def add_version(template: Template) -> Template:
    """Store a template as the next version of its name and channel.

    Raises TemplateSyntaxError for what does not compile. Concurrent calls for one template wait
    for each other, so each gets a number of its own.
    """
    compiled(template)
    lock(f"notifications.template:{template.channel}:{template.name}")
    versions = Template.objects.filter(channel=template.channel, name=template.name)
    last: int | None = versions.aggregate(last=Max("version"))["last"]
    template.version = (last or 0) + 1
    template.save(force_insert=True)
    return template
