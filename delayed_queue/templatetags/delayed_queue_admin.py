"""Tags of the admin's templates, beside Django's own.

Django loads them in projects that have no admin, too: nothing of it is imported here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from django import template
from django.utils.formats import number_format
from django.utils.html import format_html, strip_tags
from django.utils.safestring import SafeString
from django.utils.text import capfirst

if TYPE_CHECKING:
    from delayed_queue.observe.overview import Count, KindName

register: Final = template.Library()
_OPENED: Final = len("<td")


@register.filter
def number(value: float) -> str:
    """Return a number as its reader writes it, below 10 with the two digits that matter."""
    few = float(f"{value:.2g}") if abs(value) < 10 else round(value)
    return number_format(int(few) if few == int(few) else few, force_grouping=True)


@register.filter
def counted(count: Count) -> str:
    """Return a count, with a plus where counting stopped, or as an estimate."""
    if count.is_estimated:
        return f"≈ {number(float(f'{count.value:.2g}'))}"
    return number(count.value) + "+" * count.is_cut


@register.filter
def codec_of(name: KindName) -> str:
    """Return the codec of a queue, to show beside its name; empty for the usual one."""
    return "" if name.codec == "json" else name.codec


@register.filter
def labelled(cells: Iterable[str], headers: Iterable[Mapping[str, Any]]) -> list[SafeString]:
    """Return a row's cells, each with the name of its column: cards have no head."""
    return [
        _labelled(cell, strip_tags(str(header["text"])))
        for cell, header in zip(cells, headers, strict=False)
    ]


def _labelled(cell: str, label: str) -> SafeString:
    named = format_html(' data-label="{}"', capfirst(label))
    return SafeString(f"{cell[:_OPENED]}{named}{cell[_OPENED:]}")
