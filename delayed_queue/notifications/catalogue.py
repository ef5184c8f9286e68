"""Looking up templates, and adding versions of them.

A process remembers the templates it has read. What it remembers is taken on trust and must be
confirmed before anything that was made of it is committed or answered: by a statement that runs in
the round trip of others. So whoever asks after a version was committed never gets the one before,
and no process has to be told.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, LiteralString, NamedTuple

from django.db import connections, transaction
from django.db.models import Max
from django.template import TemplateSyntaxError

from delayed_queue.db.resilience import repeat
from delayed_queue.logs import log
from delayed_queue.notifications.models import Template
from delayed_queue.notifications.rendering import Compiled, compiled
from delayed_queue.notifications.services import USING, fetch

# What tells a row of the templates, as ``t``, from any other that there ever was, and from itself
# before any UPDATE, also one by hand: by the transaction that wrote it and where it lies. A
# VACUUM FULL changes it too, and then the template is read once more. Ids alone begin anew in
# another database, such as one that was restored.
STAMP: Final[LiteralString] = """
    concat_ws(' ', t.id, t.xmin, t.ctid, extract(epoch FROM t.created_at))"""

# A version of a template, the last one without a number, and its stamp.
# Reads: notification_template_version.
FIND_TEMPLATE: Final[LiteralString] = (
    """
SELECT
    t.name, t.channel, t.version, t.category, t.subject, t.body, t.html,"""
    + STAMP
    + """
FROM delayed_queue_notification_template AS t
WHERE t.name = %(name)s::text
    AND t.channel = %(channel)s::text
    AND t.version <= COALESCE(%(version)s::int, 2147483647)
    AND t.version >= COALESCE(%(version)s::int, 0)
ORDER BY t.version DESC
LIMIT 1
"""
)

# How many templates are not, or no longer, what FIND_TEMPLATE would answer.
# Reads: notification_template_version.
STALE_TEMPLATES: Final[LiteralString] = (
    """
SELECT count(*)
FROM unnest(
    %(names)s::text[], %(channels)s::text[], %(versions)s::int[], %(stamps)s::text[]
) AS known (name, channel, version, stamp)
WHERE known.stamp IS DISTINCT FROM (
        SELECT"""
    + STAMP
    + """
        FROM delayed_queue_notification_template AS t
        WHERE t.name = known.name
            AND t.channel = known.channel
            AND t.version <= COALESCE(known.version, 2147483647)
            AND t.version >= COALESCE(known.version, 0)
        ORDER BY t.version DESC
        LIMIT 1
    )
"""
)


MAX_REMEMBERED: Final = 1000
Statement = tuple[LiteralString, Mapping[str, Any]]


class Name(NamedTuple):
    """The reference of a request to a template; without a version it is the latest."""

    name: str
    channel: str
    version: int | None


class Known(NamedTuple):
    """A template as this process has read it, and the stamp of its row."""

    compiled: Compiled
    stamp: str


class _Memory:
    """The templates this process has read, those used longest ago forgotten first.

    Only such as there are: names that somebody makes up displace nothing.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Name, Known] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: Name) -> Known | None:
        with self._lock:
            if name in self._known:
                self._known.move_to_end(name)
            return self._known.get(name)

    def keep(self, name: Name, known: Known) -> None:
        with self._lock:
            self._known[name] = known
            self._known.move_to_end(name)
            while len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)


_memory: Final = _Memory()


class StaleTemplates(Exception):
    """Something was made of templates that are no longer the ones that count."""


class StoredTemplates:
    """The templates of the database; each is looked up once in the life of this object."""

    def __init__(self) -> None:
        self._found: dict[Name, Compiled | None] = {}

    def find(self, channel: str, name: str, version: int | None) -> Compiled | None:
        """Return that version, by default the last; None when there is none."""
        asked = Name(name, channel, version)
        if asked not in self._found:
            self._found[asked] = self._look_up(asked)
        return self._found[asked]

    def confirmation(self) -> Statement | None:
        """Return the statement that counts the stale ones; None if nothing was taken on trust."""
        return None

    def confirm(self) -> None:
        """Ask the database, unless nothing was taken on trust; raises StaleTemplates."""
        confirmation = self.confirmation()
        if confirmation is not None:
            demand_none(repeat(USING, partial(fetch, *confirmation)))

    def _look_up(self, asked: Name) -> Compiled | None:
        return repeat(USING, partial(_read, asked))


class RememberedTemplates(StoredTemplates):
    """As StoredTemplates, but without asking the database for what this process has read before.

    Nothing that was made of them, a refusal neither, may be committed or answered before
    ``confirmation()`` has counted zero, in a statement that began after the request had come.
    """

    def __init__(self) -> None:
        super().__init__()
        self._trusted: dict[Name, Known] = {}

    def _look_up(self, asked: Name) -> Compiled | None:
        known = _memory.get(asked)
        if known is None:
            return repeat(USING, partial(_read, asked))
        self._trusted[asked] = known
        return known.compiled

    def confirm(self) -> None:
        super().confirm()
        self._trusted.clear()

    def confirmation(self) -> Statement | None:
        if not self._trusted:
            return None
        names, channels, versions = zip(*self._trusted, strict=True)
        params = {
            "names": list(names),
            "channels": list(channels),
            "versions": list(versions),
            "stamps": [known.stamp for known in self._trusted.values()],
        }
        return STALE_TEMPLATES, params


def demand_none(rows: list[tuple[Any, ...]]) -> None:
    """Raise StaleTemplates unless the confirmation has counted none."""
    if rows[0][0]:
        raise StaleTemplates


def _read(asked: Name) -> Compiled | None:
    rows = fetch(FIND_TEMPLATE, asked._asdict())
    if not rows:
        return None
    *values, stamp = rows[0]
    known = _memory.get(asked)
    if known is None or known.stamp != stamp:
        made = _compiled(Template(**dict(zip(_FIELDS, values, strict=True))))
        if made is None:
            return None
        known = Known(made, stamp)
    _memory.keep(asked, known)
    return known.compiled


_FIELDS: Final = ("name", "channel", "version", "category", "subject", "body", "html")


def _compiled(template: Template) -> Compiled | None:
    try:
        return compiled(template)
    except TemplateSyntaxError as error:
        # Written past ``add_version``, or when the language had more: no fault of whoever names it.
        fields = {"channel": template.channel, "version": template.version}
        log(logging.ERROR, "template_broken", error, name=template.name, **fields)
        return None


@transaction.atomic(using=USING)
def add_version(template: Template) -> Template:
    """Store a template as the next version of its name and channel.

    Raises TemplateSyntaxError for what does not compile. Of two at once the second waits: they
    get two numbers.
    """
    compiled(template)
    with connections[USING].cursor() as cursor:
        name = f"notifications.template:{template.channel}:{template.name}"
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [name])
    versions = Template.objects.filter(channel=template.channel, name=template.name)
    last: int | None = versions.aggregate(last=Max("version"))["last"]
    template.version = (last or 0) + 1
    template.save(force_insert=True)
    return template
