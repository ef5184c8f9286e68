"""The pages of operators; importing this registers them.

Without a package of the extra there are no pages: E008 names it, and the project starts.
"""

from __future__ import annotations

from importlib import import_module

from delayed_queue.notifications.apps import is_of_extra

try:
    import_module("delayed_queue.notifications.admin.kept")
    import_module("delayed_queue.notifications.admin.notifications")
except ModuleNotFoundError as error:
    if not is_of_extra(error):
        raise
