"""An app whose handlers cannot be imported; tests check that the rest works."""
