"""The tags and filters that templates of notifications have, and no others."""

from __future__ import annotations

from datetime import date as Day
from datetime import datetime
from typing import Any, Final, cast

from django.template import Library
from django.template.base import FilterExpression, Node, NodeList, Parser, Token
from django.template.context import Context
from django.template.defaultfilters import (
    capfirst,
    cut,
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
from django.utils.dateformat import format as written
from django.utils.safestring import SafeString

register: Final = Library()

register.tag("if", do_if)
register.tag("comment", comment)
for _filter in (
    capfirst, cut, floatformat, join, length, linebreaksbr, lower, pluralize, title,
    truncatechars, upper, urlencode, yesno,
):  # fmt: skip
    register.filter(_filter.__name__, _filter)


@register.filter
def date(value: Any, arg: str = "j F Y") -> str:
    """Write a date, or a time in the zone it was given in, by Django's letters.

    JSON has neither, so it is one in ISO 8601. Django's own filter has nothing to say of a text,
    and says it: "Your appointment is on ."
    """
    if not isinstance(value, str):
        raise ValueError("a date is a text such as 2031-05-01")  # noqa: TRY004 - as of a bad text
    at = datetime.fromisoformat(value)
    return written(at if "T" in value or " " in value else Day(at.year, at.month, at.day), arg)


class NoRoom(Exception):
    """Loops have written more than a text may have."""


class MeasuredContext(Context):
    """A context in which loops may write so many characters: it says itself how often they turn."""

    def __init__(self, values: dict[str, Any], room: int, **options: Any) -> None:
        super().__init__(values, **options)
        self._room = room

    def take(self, characters: int) -> None:
        self._room -= characters
        if self._room < 0:
            raise NoRoom


class _Measured(Node):
    """A node within a loop: each turn of it costs one, and what it writes."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self.token, self.origin = node.token, node.origin

    def render_annotated(self, context: Context) -> SafeString:
        text = self._node.render_annotated(context)
        cast("MeasuredContext", context).take(1 + len(text))
        return cast("SafeString", text)


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
    node.nodelist_loop = NodeList(_Measured(each) for each in node.nodelist_loop)
    return node
