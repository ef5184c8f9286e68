"""The runs of a tournament, and the tables made of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from benchmarks.peers.contenders import Contender
from benchmarks.shared.reporting import Table, say
from benchmarks.shared.rounds import percentile, ratio, spread

# A figure of ours, the rival, and how many times as much it must be. All of one run.
REQUIREMENTS: Final = (
    ("ours-best", "graphile-best", "drain", "rate", 1, 1.5),
    ("ours-best", "graphile-best", "drain", "rate", 2, 1.15),
    ("ours-defaults", "graphile-best", "drain", "rate", 1, 1.3),
    ("ours-transactional", "graphile-best", "drain", "rate", 1, 2.5),
    ("ours-defaults", "graphile-best", "offer", "single_rate", 1, 2.0),
    ("ours-defaults", "pgqueuer-defaults", "offer", "single_rate", 1, 1.2),
)


@dataclass(slots=True)
class Record:
    """All runs of the contenders, and why others did not run."""

    contenders: list[Contender]
    interpreters: dict[str, str] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self, contender: Contender, measure: str, processes: int, figures: dict[str, Any]
    ) -> None:
        run = {"contender": contender.name, "measure": measure, "processes": processes}
        self.runs.append({**run, **figures})
        shown = "  ".join(f"{name} {value:,.1f}" for name, value in figures.items())
        say(f"{measure}/{processes} {contender.name:24} {shown}")

    def excuse(self, contender: Contender, reason: str) -> None:
        self.not_run[contender.name] = " ".join(reason.split())[:400].replace("|", "\\|")
        say(f"not run: {contender.name}: {reason}")

    def figures(self, name: str, measure: str, figure: str, processes: int = 1) -> list[float]:
        """Return a figure of each round, in order."""
        wanted = {"contender": name, "measure": measure, "processes": processes}
        return [run[figure] for run in self.runs if wanted.items() <= run.items() if figure in run]

    def tables(self) -> list[Table]:
        """Return the tables for which there are runs."""
        offers, pickups = {"single_rate": "one by one", "bulk_rate": "in bulk"}, _PICKUP
        found = [
            Table("Beside the requirements", ("", "rival", "times", "at least"),
                  list(self._requirements())),
            self._drains(),
            self._table("Offers of one producer, messages/s", "offer", offers, ",.0f"),
            self._table("Pick-up on an idle queue, ms", "pickup", pickups, ".1f", reverse=False),
            self._table("An idle worker", "idle", {"percent": "% of a core"}, ".2f", reverse=False),
            Table("Not run", ("", "reason"), list(self.not_run.items())),
            Table("Versions", ("", "packages", "interpreter"), list(self._versions())),
        ]  # fmt: skip
        return [each for each in found if each.rows]

    def _requirements(self) -> Iterator[list[str]]:
        for ours, rival, measure, figure, processes, least in REQUIREMENTS:
            mine, theirs = (
                self.figures(name, measure, figure, processes) for name in (ours, rival)
            )
            if mine and len(mine) == len(theirs):
                title = f"{ours}: {measure} ({figure}) by {processes}"
                yield [title, rival, f"{ratio(mine, theirs):.2f}", f"{least:g}"]

    def _drains(self) -> Table:
        counts = sorted({run["processes"] for run in self.runs if run["measure"] == "drain"})
        heads = [f"by {count}" for count in counts]
        costs = ("client / server, µs a message", "WAL, bytes a message")
        table = Table("Drain of a backlog, messages/s", ("", *heads, *costs))
        for each in self._ranked("drain", "rate", counts[0] if counts else 1):
            rates = [self.figures(each.name, "drain", "rate", count) for count in counts]
            client, server, wal = (
                percentile(self.figures(each.name, "drain", cost, counts[0]), 50)
                for cost in ("client_us", "server_us", "wal_bytes")
            )
            cells = [spread(rate) if rate else "" for rate in rates]
            table.rows.append([each.title, *cells, f"{client:.1f} / {server:.1f}", f"{wal:,.0f}"])
        return table

    def _table(
        self, title: str, measure: str, figures: dict[str, str], form: str, *, reverse: bool = True
    ) -> Table:
        table = Table(title, ("", *figures.values()))
        ranked = self._ranked(measure, next(iter(figures)))
        for each in ranked if reverse else ranked[::-1]:
            cells = [spread(self.figures(each.name, measure, name), form) for name in figures]
            table.rows.append([each.title, *cells])
        return table

    def _ranked(self, measure: str, figure: str, processes: int = 1) -> list[Contender]:
        """Return the contenders that have runs of the measure, the highest median first."""
        found = {each.name: self.figures(each.name, measure, figure, processes)
                 for each in self.contenders}  # fmt: skip
        measured = [each for each in self.contenders if found[each.name]]
        return sorted(measured, key=lambda each: -median(found[each.name]))

    def _versions(self) -> Iterator[list[str]]:
        peers = {each.peer.title: each.peer for each in self.contenders}
        for title, interpreter in self.interpreters.items():
            yield [title, ", ".join(peers[title].environment.pins), interpreter]


_PICKUP: Final = {"p50_ms": "p50", "p99_ms": "p99"}
