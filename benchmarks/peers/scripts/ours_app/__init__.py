"""The app that has the handlers of the worker under test."""
