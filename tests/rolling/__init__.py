"""The migrations of the release after this one: MIGRATION_MODULES names them."""
