"""Plans of single statements, by ``EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql as composed

_EXPLAIN: Final = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, SUMMARY OFF, FORMAT JSON) "
_PLACEHOLDER: Final = re.compile(r"%\((\w+)\)[sb]")
Node = dict[str, Any]


@dataclass(frozen=True, repr=False)
class Plan:
    """One executed plan."""

    root: Node

    def __repr__(self) -> str:
        return "\n".join(_outline(self.root))

    @property
    def buffers(self) -> int:
        """Pages touched, hits included: the cost without a cache."""
        return sum(self.root.get(f"Shared {what} Blocks", 0) for what in ("Hit", "Read"))

    @property
    def indexes(self) -> set[str]:
        """The indexes of the plan, arbiters of an ON CONFLICT included."""
        arbiters = {
            name for node in self.nodes() for name in node.get("Conflict Arbiter Indexes", ())
        }
        return arbiters | {node["Index Name"] for node in self.nodes() if "Index Name" in node}

    def nodes(self) -> Iterator[Node]:
        """Yield every executed node."""
        yield from (node for node in _walk(self.root) if node["Actual Loops"])

    def scanned_whole(self) -> list[str]:
        """Return the tables with a sequential scan."""
        return [node["Relation Name"] for node in self.nodes() if node["Node Type"] == "Seq Scan"]

    def rows_read(self) -> float:
        """Return the rows of all scans, kept or not, repetitions included."""
        return sum(_rows_examined(node) for node in self.nodes() if "Scan" in node["Node Type"])

    def rows_sorted(self) -> list[float]:
        """Return the number of rows that each sort took in."""
        return [
            _rows_out(child)
            for node in self.nodes()
            if "Sort" in node["Node Type"]
            for child in node["Plans"][:1]
        ]


def explain(
    connection: psycopg.Connection[Any], statement: str, params: Mapping[str, Any], *, generic: bool
) -> Plan:
    """Run the statement, roll its effects back, and return the plan that was used.

    ``generic`` plans without the parameters, as for a statement that is prepared and kept.
    """
    run = _explain_generic if generic else _explain_custom
    with connection.transaction(force_rollback=True):
        return Plan(run(connection, statement, params)[0]["Plan"])


def _explain_custom(
    connection: psycopg.Connection[Any], statement: str, params: Mapping[str, Any]
) -> Any:
    return connection.execute(_EXPLAIN + statement, params).fetchall()[0][0]


def _explain_generic(
    connection: psycopg.Connection[Any], statement: str, params: Mapping[str, Any]
) -> Any:
    prepare, arguments = numbered(statement, params)
    connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
    connection.execute("PREPARE explained AS " + prepare)
    try:
        execute = composed.SQL("EXECUTE explained") + arguments
        return connection.execute(composed.SQL(_EXPLAIN) + execute).fetchall()[0][0]
    finally:
        if connection.info.transaction_status is not psycopg.pq.TransactionStatus.INERROR:
            connection.execute("DEALLOCATE explained")


def numbered(statement: str, params: Mapping[str, Any]) -> tuple[str, composed.Composable]:
    """Return the statement for PREPARE, and the arguments for EXECUTE."""
    names = list(dict.fromkeys(_PLACEHOLDER.findall(statement)))
    text = _PLACEHOLDER.sub(lambda match: f"${names.index(match[1]) + 1}", statement)
    values = composed.SQL(", ").join(composed.Literal(params[name]) for name in names)
    return text, composed.SQL("({})").format(values) if names else composed.SQL("")


def planned_by(connection: psycopg.Connection[Any], execute: composed.Composable) -> Plan:
    """Run the EXECUTE, and return its plan."""
    return Plan(connection.execute(composed.SQL(_EXPLAIN) + execute).fetchall()[0][0][0]["Plan"])


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.get("Plans", ()):
        yield from _walk(child)


def _rows_out(node: Node) -> float:
    return float(node["Actual Rows"] * node["Actual Loops"])


def _rows_examined(node: Node) -> float:
    if "Relation Name" not in node:  # a bitmap's index, a CTE, a function
        return _rows_out(node) if node["Node Type"] == "Bitmap Index Scan" else 0
    removed = sum(node.get(f"Rows Removed by {what}", 0) for what in ("Filter", "Index Recheck"))
    return _rows_out(node) + float(removed * node["Actual Loops"])


def _outline(node: Node, depth: int = 0) -> Iterator[str]:
    where = node.get("Index Name") or node.get("Relation Name") or node.get("CTE Name") or ""
    yield (
        f"{'  ' * depth}{node['Node Type']} {where} rows={node['Actual Rows']}"
        f" loops={node['Actual Loops']} buffers={node.get('Shared Hit Blocks', 0)}"
        f" removed={node.get('Rows Removed by Filter', 0)}"
    )
    for child in node.get("Plans", ()):
        yield from _outline(child, depth + 1)
