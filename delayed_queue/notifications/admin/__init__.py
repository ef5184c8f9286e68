"""The pages of operators; importing this registers them.

Without a package of the extra there are no pages: E008 names it, and the project starts.
"""

from __future__ import annotations

import contextlib
from importlib import import_module

with contextlib.suppress(ModuleNotFoundError):
    import_module("delayed_queue.notifications.admin.kept")
    import_module("delayed_queue.notifications.admin.notifications")
