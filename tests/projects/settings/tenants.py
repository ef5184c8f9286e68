"""django-tenants, with the package in SHARED_APPS."""

from __future__ import annotations

from tests.projects.settings.plain import *  # noqa: F403
from tests.projects.settings.plain import DATABASES, DISTRIBUTIONS, INSTALLED_APPS, MIDDLEWARE

DISTRIBUTIONS = [*DISTRIBUTIONS, "django-tenants"]
SHARED_APPS = ["django_tenants", "tests.projects.tenants", *INSTALLED_APPS]
TENANT_APPS = ["django.contrib.contenttypes"]
INSTALLED_APPS = SHARED_APPS
TENANT_MODEL, TENANT_DOMAIN_MODEL = "tenants.Tenant", "tenants.Domain"
DATABASES = {"default": {**DATABASES["default"], "ENGINE": "django_tenants.postgresql_backend"}}
DATABASE_ROUTERS = ["django_tenants.routers.TenantSyncRouter"]
MIDDLEWARE = ["django_tenants.middleware.main.TenantMainMiddleware", *MIDDLEWARE]
