"""A database backend like django-tenants: each cursor first sets the tenant's schema."""
