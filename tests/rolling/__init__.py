"""The release after this one, as far as migrations go: MIGRATION_MODULES names them."""
