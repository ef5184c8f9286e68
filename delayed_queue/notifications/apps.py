"""The app of the notification service, and its checks."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, register
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _

from delayed_queue.conf import SETTING, find_problems
from delayed_queue.notifications.conf import get_settings


class NotificationsConfig(AppConfig):
    name = "delayed_queue.notifications"
    label = "delayed_queue_notifications"
    verbose_name = _("Delayed queue: notifications")
    default_auto_field = "django.db.models.BigAutoField"


# The modules that the extra [notifications] installs.
EXTRA: Final = {
    "aiodns", "aiohttp", "apprise", "cryptography", "idna", "kombu", "msgspec",
    "phonenumbers", "yarl",
}  # fmt: skip


def is_of_extra(error: ModuleNotFoundError) -> bool:
    """Return whether the missing module belongs to the extra."""
    return str(error.name).partition(".")[0] in EXTRA


def _can_be_used() -> bool:
    """Return whether the settings are valid; a check of the core reports their errors."""
    return not find_problems(getattr(settings, SETTING, {}))


@register
def check_providers(**_: Any) -> list[CheckMessage]:
    """Refuse providers, rates and secrets that cannot be used."""
    if not _can_be_used():
        return []
    try:
        # Imported late, because few commands need the providers.
        from delayed_queue.notifications.channels import check_dispatch, unserved_channels

        import_module("delayed_queue.notifications.recipients")
        check_dispatch()
    except ModuleNotFoundError as error:
        if not is_of_extra(error):
            raise
        hint = "Run pip install 'django-delayed-queue[notifications]'."
        text = (
            f"delayed_queue.notifications needs the package {error.name}, which is not installed."
        )
        return [checks.Error(text, hint=hint, id="delayed_queue.E008")]
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), id="delayed_queue.E008")]
    hint = "Add one to {}['PROVIDERS']."
    text = "The channel {} has no provider, so its notifications will fail."
    found = [
        _warning("delayed_queue.W008", text.format(each), hint) for each in unserved_channels()
    ]
    kinds = {each.get("kind") for each in get_settings().PROVIDERS.get("email", ())}
    if not get_settings().PUBLIC_URL and not kinds <= {"console"}:
        text = "Mail with a category is refused, because it needs an unsubscribe link."
        hint = "Set {}['PUBLIC_URL'] to the https URL of the API."
        found.append(_warning("delayed_queue.W015", text, hint))
    return found


def _warning(number: str, text: str, hint: str) -> CheckMessage:
    hint = hint.format("DELAYED_QUEUE['NOTIFICATIONS']")
    return checks.Warning(text, hint=hint, id=number)


@register(deploy=True)
def check_hash_key(**_: Any) -> list[CheckMessage]:
    """Warn if a new ``SECRET_KEY`` would invalidate suppressions."""
    if not _can_be_used() or get_settings().HASH_KEY:
        return []
    text = "Hashes of recipients depend on SECRET_KEY. If it changes, suppressions stop working."
    return [_warning("delayed_queue.W009", text, "Set {}['HASH_KEY'].")]
