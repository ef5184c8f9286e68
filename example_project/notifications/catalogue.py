"""Looking up templates, and adding versions of them."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Final

from django.db import connection, transaction
from django.db.models import Max
from django.template import TemplateSyntaxError

from example_project.notifications.models import Template
from example_project.notifications.rendering import Compiled, compiled

logger = logging.getLogger("delayed_queue.notifications")

_COMPILED: Final = 1000


class StoredTemplates:
    """The templates of the database; each is looked up once in the life of this object."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, int | None], Compiled | None] = {}

    def find(self, channel: str, name: str, version: int | None) -> Compiled | None:
        """Return that version, by default the last; None when there is none."""
        key = (channel, name, version)
        if key not in self._found:
            self._found[key] = _load(*key)
        return self._found[key]


def _load(channel: str, name: str, version: int | None) -> Compiled | None:
    versions = Template.objects.filter(channel=channel, name=name).order_by("-version")
    if version is not None:
        versions = versions.filter(version=version)
    template = versions.first()
    try:
        return None if template is None else _compile(_Key(template))
    except TemplateSyntaxError:
        # Written past ``add_version``, or when the language had more: no fault of who names it.
        logger.exception(
            "event=template_broken name=%s channel=%s version=%s",
            name, channel, template and template.version,
        )  # fmt: skip
        return None


class _Key:
    """A version as a key of the cache: by its texts, for ids begin anew in another database."""

    __slots__ = ("_texts", "template")

    def __init__(self, template: Template) -> None:
        self.template = template
        self._texts = (
            template.name, template.channel, template.version, template.category,
            template.subject, template.body, template.html,
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash(self._texts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._texts == other._texts


@lru_cache(maxsize=_COMPILED)
def _compile(key: _Key) -> Compiled:
    return compiled(key.template)


@transaction.atomic
def add_version(template: Template) -> Template:
    """Store a template as the next version of its name and channel.

    Raises TemplateSyntaxError for what does not compile. Of two at once the second waits: they
    get two numbers.
    """
    compiled(template)
    with connection.cursor() as cursor:
        name = f"notifications.template:{template.channel}:{template.name}"
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [name])
    versions = Template.objects.filter(channel=template.channel, name=template.name)
    last: int | None = versions.aggregate(last=Max("version"))["last"]
    template.version = (last or 0) + 1
    template.save(force_insert=True)
    return template
