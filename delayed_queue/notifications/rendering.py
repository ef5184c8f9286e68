"""Templates of notifications: a subset of Django's language that loads and includes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date as Day
from datetime import datetime
from typing import Any, Final

from django.template import Engine, Library, TemplateSyntaxError, defaultfilters
from django.template.base import FilterExpression, Node, NodeList, Parser, Token
from django.template.base import Template as CompiledText
from django.template.context import Context
from django.template.defaulttags import ForNode, comment, do_for, do_if
from django.utils.dateformat import format as written

from delayed_queue.notifications.models import Channel, Template

register: Final = Library()

register.tag("if", do_if)
register.tag("comment", comment)
for _filter in (
    "capfirst", "cut", "floatformat", "join", "length", "linebreaksbr", "lower", "pluralize",
    "title", "truncatechars", "upper", "urlencode", "yesno",
):  # fmt: skip
    register.filter(_filter, getattr(defaultfilters, _filter))


@register.filter
def date(value: Any, arg: str = "j F Y") -> str:
    """Format a date, or a time in its own zone, by Django's letters.

    JSON has no dates, so the value is a text in ISO 8601, for which Django's own filter returns
    an empty text.
    """
    if not isinstance(value, str):
        raise ValueError("a date is a text such as 2031-05-01")  # noqa: TRY004 - as of a bad text
    at = datetime.fromisoformat(value)
    return written(at if "T" in value or " " in value else Day(at.year, at.month, at.day), arg)


class _Measured(Node):
    """A node within a loop, which limits the characters and iterations of all loops."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self.token, self.origin = node.token, node.origin

    def render_annotated(self, context: Any) -> Any:
        text = self._node.render_annotated(context)
        context.room -= 1 + len(text)
        if context.room < 0:
            raise NotRenderable(_TOO_LONG)
        return text


class _Strict:
    """An expression that must exist: Django's ``for`` treats a missing one as empty."""

    def __init__(self, expression: FilterExpression) -> None:
        self._expression = expression

    def resolve(self, context: Any, ignore_failures: bool = False) -> Any:
        return self._expression.resolve(context)

    def __repr__(self) -> str:
        return repr(self._expression)


@register.tag("for")
def strict_for(parser: Parser, token: Token) -> ForNode:
    """Loop as Django does; a missing value is an error."""
    node = do_for(parser, token)
    node.sequence = _Strict(node.sequence)  # type: ignore[arg-type, assignment]
    node.nodelist_loop = NodeList(_Measured(each) for each in node.nodelist_loop)
    return node


MAX_RENDERED: Final = 256 * 1024
# Text in nested loops counts once per level.
ROOM: Final = 2 * MAX_RENDERED
_TOO_LONG: Final = f"the text has more than {MAX_RENDERED} characters"


class MissingVariable(Exception):
    """A template names a variable that the context lacks."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class NotRenderable(Exception):
    """The reason why a template cannot be rendered with a context."""


class _Refusal(str):
    """Raises an error in place of a missing variable, where Django inserts nothing."""

    __slots__ = ()

    def __contains__(self, item: object) -> bool:
        return True

    def __mod__(self, variable: Any) -> str:
        raise MissingVariable(str(variable))


class RestrictedEngine(Engine):
    """Django's engine with a few tags and filters, no loaders, and no missing variables."""

    default_builtins = ["delayed_queue.notifications.rendering"]

    def __init__(self, *, autoescape: bool) -> None:
        super().__init__(
            autoescape=autoescape, loaders=[], string_if_invalid=_Refusal("%s"), libraries={}
        )
        self.libraries: dict[str, str] = {}


_HTML: Final = RestrictedEngine(autoescape=True)
_TEXT: Final = RestrictedEngine(autoescape=False)


class _Fields:
    """A JSON object of which a template reaches only the members, no method of dict.

    A null member counts as missing, so that no text reads "Dear None".
    """

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        value = self._values[name]
        if value is None:
            raise KeyError(name)
        return _guarded(value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __str__(self) -> str:
        raise NotRenderable("an object cannot be written into a text; name one of its members")


class _Items(tuple[Any, ...]):
    """A JSON array: to loop over, not to write."""

    __slots__ = ()

    def __str__(self) -> str:
        raise NotRenderable("an array cannot be written into a text; loop over it, or join it")


def _guarded(value: Any) -> Any:
    if isinstance(value, dict):
        return _Fields(value)
    return _Items(map(_guarded, value)) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Rendered:
    """The result of rendering a template."""

    subject: str
    body: str
    html: str


@dataclass(frozen=True, slots=True)
class Compiled:
    """A version of a template, ready to render."""

    name: str
    channel: str
    version: int
    category: str
    is_transactional: bool
    subject: CompiledText
    body: Any
    html: CompiledText

    def render(self, context: dict[str, Any]) -> Rendered:
        """Render all parts; raises MissingVariable and NotRenderable."""
        values = {name: _guarded(each) for name, each in context.items() if each is not None}
        body = _render(self.body, values)
        if self.channel == Channel.WEBHOOK:
            body = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        subject, html = (_render_text(each, values) for each in (self.subject, self.html))
        return Rendered(subject.strip(), body, html)


def compiled(template: Template) -> Compiled:
    """Compile a version; raises TemplateSyntaxError for what the language lacks."""
    return Compiled(
        template.name,
        template.channel,
        template.version,
        template.category,
        template.is_transactional,
        _TEXT.from_string(template.subject),
        _compile_body(template),
        _HTML.from_string(template.html),
    )


def _compile_body(template: Template) -> Any:
    if template.channel != Channel.WEBHOOK:
        return _TEXT.from_string(template.body)
    try:
        return _compile_json(json.loads(template.body))
    except (ValueError, RecursionError) as error:
        raise TemplateSyntaxError(f"The body of a webhook is JSON: {error}") from None


def _compile_json(value: Any) -> Any:
    """Compile the strings of a JSON value: no context can then change its structure."""
    if isinstance(value, dict):
        return {name: _compile_json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_compile_json(each) for each in value]
    return _TEXT.from_string(value) if isinstance(value, str) else value


def _render(part: Any, values: dict[str, Any]) -> Any:
    if isinstance(part, dict):
        return {name: _render(each, values) for name, each in part.items()}
    if isinstance(part, list):
        return [_render(each, values) for each in part]
    return _render_text(part, values) if isinstance(part, CompiledText) else part


def _render_text(template: CompiledText, values: dict[str, Any]) -> str:
    # Most notifications have no HTML.
    if not template.source:
        return ""
    try:
        # The context decides about escaping, not its engine.
        context: Any = Context(
            values, autoescape=template.engine.autoescape, use_l10n=False, use_tz=False
        )
        context.room = ROOM
        text = template.render(context)
    # Filters raise these for values of other types.
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
        raise NotRenderable(f"the template cannot use a value: {type(error).__name__}") from None
    if len(text) > MAX_RENDERED:
        raise NotRenderable(_TOO_LONG)
    # Without the mark of a SafeString, which str() keeps.
    return str.__str__(text)
