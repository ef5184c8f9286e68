"""The queue against bare SQL that does the same work on the same server, in the same run."""

from __future__ import annotations
