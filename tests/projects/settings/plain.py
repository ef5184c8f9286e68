"""A project on Django's defaults, with all apps but the pipeline; others change one thing."""

from __future__ import annotations

from typing import Any

import environ

env = environ.Env()
ALIAS = "default"
# Packages whose versions are in the table.
DISTRIBUTIONS = ["Django", "psycopg"]
# The first match in an admin page is its breadcrumbs.
BREADCRUMBS = r'class="breadcrumbs?">.*?</(?:div|ol)>'
SECRET_KEY = "for tests only"
DEBUG = False
USE_TZ = True
DATABASES: dict[str, Any] = {"default": env.db_url("DATABASE_URL")}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "delayed_queue",
    "delayed_queue.tasks",
    "delayed_queue.http",
    "delayed_queue.notifications",
    "tests.projects",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "tests.projects.urls"
STATIC_URL = "static/"
ALLOWED_HOSTS = ["testserver"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DELAYED_QUEUE: dict[str, Any] = {
    "API": {"TOPICS": ["jobs"]},
    "CALLBACKS": {"ENABLED": False},
    "NOTIFICATIONS": {"HASH_KEY": "for tests only"},
}
TASKS: dict[str, Any] = {
    "default": {
        "BACKEND": "delayed_queue.tasks.DelayedQueueBackend",
        "QUEUES": ["default"],
        "OPTIONS": {"DATABASE": ALIAS},
    }
}
