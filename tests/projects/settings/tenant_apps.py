"""Tenants by schema, with the package in TENANT_APPS: refused."""

from __future__ import annotations

from tests.projects.settings.tenants import *  # noqa: F403

TENANT_APPS = ["django.contrib.contenttypes", "delayed_queue"]
