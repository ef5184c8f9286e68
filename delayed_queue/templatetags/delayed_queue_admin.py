"""Tags of the admin's templates, beside Django's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from django import template
from django.utils.html import format_html, strip_tags
from django.utils.safestring import SafeString
from django.utils.text import capfirst

from delayed_queue.admin.formats import counted, number

register: Final = template.Library()
_OPENED: Final = len("<td")


register.filter("number", number)
register.filter("counted", counted)


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
