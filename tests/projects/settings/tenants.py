"""Tenants by schema, with the package in SHARED_APPS: the backend sets search_path in cursor()."""

from __future__ import annotations

from tests.projects.settings.plain import *  # noqa: F403
from tests.projects.settings.plain import DATABASES, INSTALLED_APPS

SHARED_APPS = INSTALLED_APPS
TENANT_APPS = ["django.contrib.contenttypes"]
DATABASES = {"default": {**DATABASES["default"], "ENGINE": "tests.projects.tenants"}}
