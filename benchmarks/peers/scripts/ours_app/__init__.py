"""The Django app with the handlers of the worker under test."""
