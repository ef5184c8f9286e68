"""The table of contenders: a module for each family of peers, a line for each variant."""

from __future__ import annotations

from typing import Final

from benchmarks.peers.contenders import celery, django, node, ours, python
from benchmarks.peers.contenders.base import Contender

ALL: Final[tuple[Contender, ...]] = (
    *ours.CONTENDERS,
    *node.CONTENDERS,
    *python.CONTENDERS,
    *django.CONTENDERS,
    *celery.CONTENDERS,
)
