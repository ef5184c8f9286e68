"""Conditions on the rows of a reader, in SQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg import sql as composed


@dataclass(frozen=True, slots=True)
class Condition:
    """A column, one of our operators, and what it is compared with."""

    column: str
    operator: str
    value: Any = None

    def named(self, name: str) -> tuple[composed.Composable, dict[str, Any]]:
        """Return the condition with a placeholder of that name, and what belongs there."""
        column = composed.Identifier(self.column)
        query = composed.SQL("{} " + self.operator + " {}").format(
            column, composed.Placeholder(name)
        )
        return query, {name: self.value}
