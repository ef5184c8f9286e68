"""The tags and filters that templates of notifications have, and no others."""

from __future__ import annotations

from typing import Any, Final

from django.template import Library
from django.template.base import FilterExpression, Parser, Token
from django.template.defaultfilters import (
    capfirst,
    cut,
    date,
    floatformat,
    join,
    length,
    linebreaksbr,
    lower,
    pluralize,
    title,
    truncatechars,
    upper,
    urlencode,
    yesno,
)
from django.template.defaulttags import ForNode, comment, do_for, do_if

register: Final = Library()

register.tag("if", do_if)
register.tag("comment", comment)
for _filter in (
    capfirst, cut, date, floatformat, join, length, linebreaksbr, lower, pluralize, title,
    truncatechars, upper, urlencode, yesno,
):  # fmt: skip
    register.filter(_filter.__name__, _filter)


class _Strict:
    """An expression that must exist: Django's ``for`` takes a missing one for an empty one."""

    def __init__(self, expression: FilterExpression) -> None:
        self._expression = expression

    def resolve(self, context: Any, ignore_failures: bool = False) -> Any:
        return self._expression.resolve(context)

    def __repr__(self) -> str:
        return repr(self._expression)


@register.tag("for")
def strict_for(parser: Parser, token: Token) -> ForNode:
    """Loop as Django does, but over nothing that is missing."""
    node = do_for(parser, token)
    node.sequence = _Strict(node.sequence)  # type: ignore[arg-type, assignment]
    return node
