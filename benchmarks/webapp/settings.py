"""Settings of a measured web server: the APIs beside bare views."""

from __future__ import annotations

import os

from benchmarks.workerapp.settings import *  # noqa: F403
from benchmarks.workerapp.settings import DELAYED_QUEUE

DELAYED_QUEUE = {"API": {"TOPICS": ["benchmark"]}, **DELAYED_QUEUE}
ROOT_URLCONF = "benchmarks.webapp.urls"
ALLOWED_HOSTS = ["127.0.0.1"]
# The middleware of `startproject`, or none: under ASGI each costs a change of threads.
STARTPROJECT = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
MIDDLEWARE = STARTPROJECT if "BENCHMARK_MIDDLEWARE" in os.environ else []
INSTALLED_APPS = [
    "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions",
    "django.contrib.messages", "delayed_queue", "delayed_queue.http",
    "delayed_queue.notifications",
]  # fmt: skip
