"""Settings of the example project, read from the environment; importing them starts nothing."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured

from delayed_queue.retries import RetryPolicy
from example_project.keys import ADVICE, local_key
from example_project.postgres import EmbeddedPostgres

env = environ.Env()
BASE_DIR = Path(__file__).resolve().parent.parent

DEBUG = env.bool("DEBUG", default=False)
DATABASE_URL_IS_SET = bool(env.str("DATABASE_URL", default=""))
SECRET_KEY = env.str("SECRET_KEY", default="")
if not SECRET_KEY:
    if DATABASE_URL_IS_SET and not DEBUG:
        # A generated key would differ between machines: sessions end, opt-outs are not found.
        raise ImproperlyConfigured(f"{ADVICE}; or DEBUG=1 to try things on this machine.")
    SECRET_KEY = local_key()
# True behind a proxy that serves https only and sets X-Forwarded-Proto.
HTTPS = env.bool("HTTPS", default=False)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = HTTPS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None
SECURE_HSTS_SECONDS = env.int("HSTS_SECONDS", default=3600) if HTTPS else 0
# HSTS for subdomains and preloading are decisions of the domain's owner.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=[])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "delayed_queue",
    "delayed_queue.tasks",
    "delayed_queue.http",
    "delayed_queue.spark",
    "delayed_queue.notifications",
    "example_project",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "example_project.urls"
WSGI_APPLICATION = "example_project.wsgi.application"
ASGI_APPLICATION = "example_project.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]


def database(url: str) -> dict[str, Any]:
    """Return the settings of the database at the URL; `?host=` may name a socket directory."""
    found: dict[str, Any] = env.db_url_config(url)
    options = found.get("OPTIONS", {})
    if "host" in options:  # at its usual place, where `dbshell` finds it too
        found["HOST"] = options.pop("host")
    found["TEST"] = {"NAME": env.str("TEST_DATABASE_NAME", default=None)}
    return found


# The server of `manage.py queuedb`; None if DATABASE_URL names another one. The path of its socket
# is known before it starts: workers and Spark executors import this module, too.
EMBEDDED_POSTGRES = None if DATABASE_URL_IS_SET else EmbeddedPostgres()
DATABASES = {
    "default": database(
        EMBEDDED_POSTGRES.socket_url if EMBEDDED_POSTGRES else env.str("DATABASE_URL")
    ),
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
# True: the ASGI application serves static files itself, without a web server in front.
SERVE_STATIC = env.bool("SERVE_STATIC", default=DEBUG)

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {
        "delayed_queue": {
            "handlers": ["console"],
            "level": env.str("LOG_LEVEL", default="INFO"),
        },
    },
}


# Where recipients of mail reach the API; a deployment sets NOTIFICATIONS_URL.
LOCAL_URL = "http://localhost:8000/v1" if DEBUG or not DATABASE_URL_IS_SET else ""


def _providers() -> dict[str, Any]:
    """Return providers and retries of notifications; by default they are written to the log."""
    found: dict[str, Any] = {}
    # For each channel, as JSON: docs/guides/dispatching.md.
    if env.str("NOTIFICATION_PROVIDERS", default=""):
        found["PROVIDERS"] = env.json("NOTIFICATION_PROVIDERS")
    # Waits before each further attempt, as in "5s 10s 1m".
    if env.str("NOTIFICATION_RETRIES", default=""):
        found["RETRY"] = RetryPolicy.ladder(env.str("NOTIFICATION_RETRIES"), jitter=0.1)
    return found


# Workers of the queues run the tasks; results are kept for a week.
TASKS: dict[str, Any] = {
    "default": {
        "BACKEND": "delayed_queue.tasks.DelayedQueueBackend",
        "QUEUES": ["default", "invoices"],
        "OPTIONS": {"RESULTS": "7d"},
    }
}
DELAYED_QUEUE: dict[str, Any] = {
    # Queues of orders and notifications are not served over HTTP.
    "API": {
        "TOPICS": env.list("TOPICS", default=["close-order", "notify-upstream", "poll-refund"])
    },
    # Calls of private addresses are refused unless these allow them: docs/operations/security.md.
    "CALLBACKS": {
        "ENABLED": env.bool("CALLBACKS", default=True),
        "ALLOWED_HOSTS": env.list("CALLBACK_HOSTS", default=[]),
        "ALLOWED_NETWORKS": env.list("CALLBACK_NETWORKS", default=[]),
        "ALLOWED_PORTS": env.list("CALLBACK_PORTS", cast=int, default=[]),
        "BREAKER_PAUSE": timedelta(seconds=env.float("CALLBACK_BREAKER_PAUSE", default=30.0)),
    },
    "NOTIFICATIONS": {
        "BROKER_URL": env.str("AMQP_URL", default="") or "memory://",
        "BROKER_QUEUE": env.str("AMQP_QUEUE", default="notifications"),
        "HASH_KEY": env.str("NOTIFICATIONS_HASH_KEY", default=""),
        "EVENTS": {"demo": {"kind": "example_project.events.SignedEvents"}},
        "PUBLIC_URL": env.str("NOTIFICATIONS_URL", default=LOCAL_URL),
        **_providers(),
    },
    # Notifications that no dispatcher will settle: the overdue ones each minute, and all others by
    # a full scan every ten minutes.
    "CRON": [
        {"queue": "notifications-sweeps", "key_prefix": "sweep", "schedule": "* * * * *"},
        {"queue": "notifications-sweeps", "key_prefix": "lost", "schedule": "*/10 * * * *"},
    ],
}
