"""Templates of notifications: Django's language without what loads, includes or reaches out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from django.template import Engine, TemplateSyntaxError
from django.template.base import Template as CompiledText

from delayed_queue.notifications.models import Channel, Template
from delayed_queue.notifications.tags import MeasuredContext, NoRoom

MAX_RENDERED: Final = 256 * 1024
# What is written in loops within loops counts for each.
ROOM: Final = 2 * MAX_RENDERED
_TOO_LONG: Final = f"the text has more than {MAX_RENDERED} characters"


class MissingVariable(Exception):
    """A template names a variable that the context lacks."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class NotRenderable(Exception):
    """A template and a context that do not go together, and why."""


class _Refusal(str):
    """What Django puts in place of a missing variable: an error instead of nothing."""

    __slots__ = ()

    def __contains__(self, item: object) -> bool:
        return True

    def __mod__(self, variable: Any) -> str:
        raise MissingVariable(str(variable))


class RestrictedEngine(Engine):
    """Django's engine with a few tags and filters, no loaders, and no missing variables."""

    default_builtins = ["delayed_queue.notifications.tags"]

    def __init__(self, *, autoescape: bool) -> None:
        super().__init__(
            autoescape=autoescape, loaders=[], string_if_invalid=_Refusal("%s"), libraries={}
        )
        self.libraries: dict[str, str] = {}


_HTML: Final = RestrictedEngine(autoescape=True)
_TEXT: Final = RestrictedEngine(autoescape=False)


class _Fields:
    """A JSON object whose members are all that a template reaches: no method of dict.

    A member that is null is missing: a text must not read "Dear None".
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
    """What a template made of a context."""

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
    # Most texts have no HTML: nothing is faster than not to begin.
    if not template.source:
        return ""
    try:
        # A Context escapes as it says itself, whatever its engine says.
        context = MeasuredContext(
            values, ROOM, autoescape=template.engine.autoescape, use_l10n=False, use_tz=False
        )
        text = template.render(context)
    except NoRoom:
        raise NotRenderable(_TOO_LONG) from None
    # What filters raise of values that they were not made for.
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
        raise NotRenderable(f"the template cannot use a value: {type(error).__name__}") from None
    if len(text) > MAX_RENDERED:
        raise NotRenderable(_TOO_LONG)
    return str(text)
