"""Types of replies: structs in camelCase, made of the dataclasses that views return."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from msgspec import UNSET, Meta, defstruct


@cache
def reply_type(kind: Any) -> Any:
    """Return the type by which a reply of this type is written and described."""
    if get_origin(kind) is list:
        return list[reply_type(get_args(kind)[0])]  # type: ignore[misc]
    if get_origin(kind) is UnionType:
        return reduce(or_, map(reply_type, get_args(kind)))
    if kind is datetime:
        return Annotated[datetime, Meta(tz=True)]
    return _struct_of(kind) if is_dataclass(kind) else kind


def _struct_of(kind: Any) -> Any:
    types = get_type_hints(kind)
    # An optional field is left out of the reply; another default is for Python code only.
    shown = [
        (each.name, reply_type(types[each.name]), *([UNSET] if each.default is UNSET else []))
        for each in fields(kind)
        if not each.metadata.get("is_internal")
    ]
    return defstruct(kind.__name__, shown, rename="camel", namespace={"__doc__": kind.__doc__})
