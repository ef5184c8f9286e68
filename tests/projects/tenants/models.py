"""The tenants of django-tenants, and their hosts."""

from __future__ import annotations

from django_tenants.models import DomainMixin, TenantMixin


class Tenant(TenantMixin):  # type: ignore[misc] # untyped
    pass


class Domain(DomainMixin):  # type: ignore[misc] # untyped
    pass
