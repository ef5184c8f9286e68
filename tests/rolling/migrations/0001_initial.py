"""This release's."""

from __future__ import annotations

from importlib import import_module

Migration = import_module("delayed_queue.migrations.0001_initial").Migration
