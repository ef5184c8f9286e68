"""System checks: wrong settings and unsuitable databases are said at start-up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import connections

from delayed_queue.conf import SETTING, find_problems, get_settings
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.instruments import load
from delayed_queue.schedules import has_zones

OLDEST_POSTGRESQL = 130_000


@register()
def check_settings(
    app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """E001: an unknown key or a wrong value in DELAYED_QUEUE."""
    return [
        Error(problem.message, hint=problem.hint, id="delayed_queue.E001", obj=SETTING)
        for problem in find_problems(getattr(settings, SETTING, {}))
    ]


@register()
def check_zones(
    app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """W004: no time zone database, without which schedules know no local time."""
    if has_zones():
        return []
    return [
        checks.Warning(
            "Python finds no time zone database.",
            hint="Install the package tzdata. Without, only periodic schedules can be made.",
            id="delayed_queue.W004",
        )
    ]


def check_instruments(
    app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """E003: an instrument that cannot be loaded."""
    configured = getattr(settings, SETTING, {})
    if find_problems(configured):
        return []
    return [message for each in configured.get("INSTRUMENTS", ()) for message in _loading(each)]


@register(Tags.security, deploy=True)
def check_api(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E004: an API without tokens. E005: its page of documentation open to all. On deployment."""
    configured = getattr(settings, SETTING, {})
    if find_problems(configured):
        return []
    api = get_settings().API
    messages: list[CheckMessage] = []
    if api.PUBLIC:
        messages.append(
            _open("The HTTP API answers without a token.", "PUBLIC", "delayed_queue.E004")
        )
    if settings.DEBUG if api.DOCS is None else api.DOCS:
        messages.append(
            _open("The page of the HTTP API is open to all.", "DOCS", "delayed_queue.E005")
        )
    return messages


def _open(text: str, key: str, number: str) -> CheckMessage:
    hint = f"Leave {SETTING}['API'][{key!r}] out, and DEBUG off."
    return Error(text, hint=hint, id=number, obj=SETTING)


def _loading(entry: Any) -> list[CheckMessage]:
    try:
        load(entry)
    except InvalidConfiguration as error:
        hint = "Correct the path in INSTRUMENTS, or install what the instrument needs."
        return [Error(str(error), hint=hint, id="delayed_queue.E003", obj=SETTING)]
    return []


@register(Tags.database)
def check_databases(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E002: not PostgreSQL, where it is asked for. W003: a server older than 13."""
    messages: list[CheckMessage] = []
    for alias in databases or ():
        connection: Any = connections[alias]
        if connection.vendor != "postgresql":
            messages.append(_not_postgresql(alias, connection.vendor))
        elif connection.pg_version < OLDEST_POSTGRESQL:
            messages.append(
                checks.Warning(
                    f"The database {alias!r} runs PostgreSQL {connection.pg_version}.",
                    hint="delayed_queue is tested on PostgreSQL 15 and newer; 13 is the oldest.",
                    id="delayed_queue.W003",
                )
            )
    return messages


def _not_postgresql(alias: str, vendor: str) -> CheckMessage:
    # The default database must fit; another one may serve other apps through a router.
    level = Error if alias == "default" else checks.Warning
    return level(
        f"The database {alias!r} is {vendor}; delayed_queue needs PostgreSQL.",
        hint="Use django.db.backends.postgresql, or keep queues off this alias with using=.",
        id="delayed_queue.E002" if alias == "default" else "delayed_queue.W002",
    )
