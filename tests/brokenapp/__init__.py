"""An app whose handlers cannot be imported, for the tests of what goes on without them."""
