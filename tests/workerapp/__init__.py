"""An app with handlers for the tests of the worker."""
