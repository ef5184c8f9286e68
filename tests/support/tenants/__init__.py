"""A database backend as django-tenants has it: each cursor first sets the schema of the tenant."""
