"""System checks of the core: settings, databases, handlers and schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.apps import AppConfig, apps
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import DEFAULT_DB_ALIAS, connections, router
from django.db.models import DateTimeField
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from delayed_queue.conf import SETTING, find_problems, get_settings
from delayed_queue.db.own import pool_size
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.handlers import registry
from delayed_queue.instruments import load

OLDEST_POSTGRESQL = 130_000
NO_APP: Final = "names a backend of delayed_queue.tasks, whose app is not installed."
NO_APP_HINT: Final = "Add 'delayed_queue' and 'delayed_queue.tasks' to INSTALLED_APPS, and migrate."


@register()
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """E001: an unknown key or a wrong value in DELAYED_QUEUE."""
    return [
        Error(problem.message, hint=problem.hint, id="delayed_queue.E001", obj=SETTING)
        for problem in find_problems(getattr(settings, SETTING, {}))
    ]


@register()
def check_backends(**kwargs: Any) -> list[CheckMessage]:
    """E012: a backend of tasks, whose app is not installed and so cannot report it."""
    configured = getattr(settings, "TASKS", None)
    if apps.is_installed("delayed_queue.tasks") or not isinstance(configured, dict):
        return []
    return [
        Error(f"TASKS[{alias!r}] {NO_APP}", hint=NO_APP_HINT, id="delayed_queue.E012")
        for alias, entry in configured.items()
        if isinstance(entry, dict) and str(entry.get("BACKEND")).startswith("delayed_queue.tasks.")
    ]


@register()
def check_zones(**kwargs: Any) -> list[CheckMessage]:
    """W004: no time zone database, so schedules have no local times."""
    from delayed_queue.cron.rules import has_zones

    if has_zones():
        return []
    return [
        checks.Warning(
            _("There is no time zone database."),
            hint=_("Install the package tzdata. Without it, only periodic schedules work."),
            id="delayed_queue.W004",
        )
    ]


@register()
def check_instruments(**kwargs: Any) -> list[CheckMessage]:
    """E003: an instrument that cannot be loaded."""
    configured = getattr(settings, SETTING, {})
    if find_problems(configured):
        return []
    return [message for each in configured.get("INSTRUMENTS", ()) for message in _loading(each)]


@register()
def check_handlers(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E006: handlers that cannot be imported, or a wrong TASKS. W006: the same with a database.

    ``migrate`` checks with a database; an error would stop it, although it calls no handler.
    """
    if find_problems(getattr(settings, SETTING, {})):
        return []  # E001 comes first: handlers may fail because of these settings
    is_error = databases is None
    level = Error if is_error else checks.Warning
    return [
        level(
            failure,
            hint=_(
                "Correct this. Until then workers refuse to start; other processes "
                "run without these handlers."
            ),
            id="delayed_queue.E006" if is_error else "delayed_queue.W006",
        )
        for failure in registry.failures.values()
    ]


@register()
def check_pools(**kwargs: Any) -> list[CheckMessage]:
    """W012: a pool with fewer connections than a worker process needs."""
    if find_problems(getattr(settings, SETTING, {})):
        return []
    from delayed_queue.worker.options import WorkerOptions

    needed = WorkerOptions().pooled_connections
    return [
        checks.Warning(
            _("The pool of %(alias)r has %(size)d connections; a worker needs %(needed)d.")
            % {"alias": alias, "size": size, "needed": needed},
            hint=_(
                "Raise max_size in OPTIONS['pool'], lower CONCURRENCY, or silence "
                "this check if no worker runs with these settings."
            ),
            id="delayed_queue.W012",
        )
        for alias in connections
        if (size := pool_size(alias)) is not None and size < needed
    ]


@register()
def check_schedules(**kwargs: Any) -> list[CheckMessage]:
    """W005: a schedule whose ticks no handler takes."""
    configured = getattr(settings, SETTING, {})
    if find_problems(configured) or registry.failures:
        return []
    from delayed_queue.cron.registry import crontab, entries_of

    entries = [*entries_of(get_settings().CRON), *crontab]
    return [
        checks.Warning(
            _("The schedule %(name)r, declared in %(module)s: %(lack)s")
            % {"name": entry.key_prefix, "module": entry.declared_in, "lack": lack},
            hint=_(
                "Declare a handler with @handler, or silence this check if the "
                "ticks are handled elsewhere."
            ),
            id="delayed_queue.W005",
        )
        for entry in entries
        if (lack := registry.lack_of(entry.queue, entry.id[0]))
    ]


def _loading(entry: Any) -> list[CheckMessage]:
    try:
        load(entry)
    except InvalidConfiguration as error:
        hint = _("Correct the path in INSTRUMENTS, or install what the instrument needs.")
        return [Error(str(error), hint=hint, id="delayed_queue.E003", obj=SETTING)]
    return []


@register()
def check_vendors(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E002: without named databases, the router allows the tables on no PostgreSQL."""
    homes = filter(is_home, connections)
    if databases is not None or any(connections[each].vendor == "postgresql" for each in homes):
        return []
    return [_not_postgresql(DEFAULT_DB_ALIAS, connections[DEFAULT_DB_ALIAS].vendor)]


def is_home(alias: str) -> bool:
    """Return whether the router allows the package's tables on the database."""
    return router.allow_migrate_model(alias, apps.get_model("delayed_queue", "Message"))


def check_alias(alias: str, setting: str, *labels: str) -> list[CheckMessage]:
    """E014, W013: a setting names another database than the router."""
    found: list[CheckMessage] = []
    for model in map(apps.get_model, labels):
        facts = {"setting": setting, "alias": alias, "model": model._meta.label}
        if not router.allow_migrate_model(alias, model):
            said = _(
                "%(setting)s names %(alias)r, but the router allows no table of %(model)s there."
            )
            error = Error(said % facts, hint=str(_ONE_ALIAS), id="delayed_queue.E014")
            found.append(error)
        elif (routed := router.db_for_write(model)) != alias:
            said = _("%(setting)s names %(alias)r, but the router sends %(model)s to %(routed)r.")
            facts["routed"] = routed
            warning = checks.Warning(said % facts, hint=str(_ONE_ALIAS), id="delayed_queue.W013")
            found.append(warning)
    return found


_ONE_ALIAS: Final = gettext_lazy(
    "Name the same database in both: the admin uses the router, everything else the setting."
)


@register()
def check_tenants(**kwargs: Any) -> list[CheckMessage]:
    """E013: tables in each tenant's schema; a worker would see one of them."""
    wrong = [
        each for each in getattr(settings, "TENANT_APPS", ()) if each.startswith("delayed_queue")
    ]
    if not wrong:
        return []
    said = _("TENANT_APPS contains %(apps)s, but workers serve one schema, not one per tenant.")
    hint = _("Move it to SHARED_APPS, and name the tenant in the payload or a header.")
    return [Error(said % {"apps": ", ".join(wrong)}, hint=hint, id="delayed_queue.E013")]


@register()
def check_time_zone(**kwargs: Any) -> list[CheckMessage]:
    """E015: an app of the package with DateTimeFields, and USE_TZ off."""
    if settings.USE_TZ:
        return []
    wrong = sorted(each.name for each in apps.get_app_configs() if _has_local_times(each))
    if not wrong:
        return []
    said = _("USE_TZ is False: the times of %(apps)s would have no time zone.")
    hint = _("Set USE_TZ = True. The queue itself and tasks work without it.")
    return [Error(said % {"apps": ", ".join(wrong)}, hint=hint, id="delayed_queue.E015")]


def _has_local_times(app: AppConfig) -> bool:
    fields = [field for model in app.get_models() for field in model._meta.get_fields()]
    is_ours = app.name.startswith("delayed_queue.")
    return is_ours and any(isinstance(each, DateTimeField) for each in fields)


@register(Tags.database)
def check_databases(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E002: a named database is not PostgreSQL. W003: its server is older than 13.

    Databases on which the router allows no tables are not checked.
    """
    messages: list[CheckMessage] = []
    for alias in filter(is_home, databases or ()):
        connection: Any = connections[alias]
        if connection.vendor != "postgresql":
            messages.append(_not_postgresql(alias, connection.vendor))
        elif connection.pg_version < OLDEST_POSTGRESQL:
            messages.append(
                checks.Warning(
                    _("The database %(alias)r runs PostgreSQL %(version)s.")
                    % {"alias": alias, "version": connection.pg_version},
                    hint=_("delayed_queue is tested on PostgreSQL 15 and newer; 13 is the oldest."),
                    id="delayed_queue.W003",
                )
            )
    return messages


@register(Tags.database)
def check_rights(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """W014: the role of the database lacks a right that a worker needs."""
    from delayed_queue.worker.engine.database import missing_rights

    postgresql = [each for each in databases or () if connections[each].vendor == "postgresql"]
    return [
        checks.Warning(
            _("The role %(role)r on %(alias)r lacks rights of a worker: %(rights)s.")
            % {"role": found[0].role, "alias": alias, "rights": ", ".join(map(str, found))},
            hint=_("Grant them, or silence this check if no worker runs with these settings."),
            id="delayed_queue.W014",
        )
        for alias in postgresql
        if (found := missing_rights(alias))
    ]


def _not_postgresql(alias: str, vendor: str) -> CheckMessage:
    # The default database must fit; another one may serve other apps through a router.
    level = Error if alias == DEFAULT_DB_ALIAS else checks.Warning
    return level(
        _("The database %(alias)r is %(vendor)s; delayed_queue needs PostgreSQL.")
        % {"alias": alias, "vendor": vendor},
        hint=_("Use django.db.backends.postgresql, or keep queues off this alias with using=."),
        id="delayed_queue.E002" if alias == "default" else "delayed_queue.W002",
    )
