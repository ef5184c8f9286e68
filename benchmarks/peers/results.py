"""The runs of a tournament, and the tables made of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from benchmarks.peers.contenders import Contender
from benchmarks.shared.reporting import Table, say
from benchmarks.shared.rounds import ratio, spread

# A figure of ours, the rival, and how many times as much it must be. All of one run.
REQUIREMENTS: Final = (
    ("ours-best", "graphile-best", "drain", "rate", 1, 1.5),
    ("ours-best", "graphile-best", "drain", "rate", 2, 1.15),
    ("ours-defaults", "graphile-best", "drain", "rate", 1, 1.3),
    ("ours-transactional", "graphile-best", "drain", "rate", 1, 2.5),
    ("ours-defaults", "graphile-best", "offer", "one by one", 1, 2.0),
    ("ours-defaults", "pgqueuer-defaults", "offer", "one by one", 1, 1.2),
)


@dataclass(slots=True)
class Record:
    """All runs of the contenders, and why others did not run."""

    contenders: list[Contender]
    interpreters: dict[str, str] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self, contender: Contender, measure: str, processes: int, figures: dict[str, float]
    ) -> None:
        run = {"contender": contender.name, "measure": measure, "processes": processes}
        self.runs.append({**run, "figures": figures})
        shown = "  ".join(f"{name} {value:,.1f}" for name, value in figures.items())
        say(f"{measure}/{processes} {contender.name:24} {shown}")

    def excuse(self, contender: Contender, reason: str) -> None:
        self.not_run[contender.name] = " ".join(reason.split())[:400].replace("|", "\\|")
        say(f"not run: {contender.name}: {reason}")

    def figures(self, name: str, measure: str, processes: int, figure: str) -> list[float]:
        """Return a figure of each round, in order."""
        wanted = {"contender": name, "measure": measure, "processes": processes}
        found = [run["figures"] for run in self.runs if wanted.items() <= run.items()]
        return [each[figure] for each in found if figure in each]

    def tables(self) -> list[Table]:
        """Return the tables for which there are runs."""
        required = Table("Beside the requirements", ("", "rival", "times", "at least"))
        required.rows = list(self._requirements())
        measured = dict.fromkeys((run["measure"], run["processes"]) for run in self.runs)
        versions = Table("Versions", ("", "packages", "interpreter"), list(self._versions()))
        not_run = Table("Not run", ("", "reason"), list(self.not_run.items()))
        found = [required, *(self._table(*each) for each in measured), not_run, versions]
        return [each for each in found if each.rows]

    def _requirements(self) -> Iterator[list[str]]:
        for ours, rival, measure, figure, processes, least in REQUIREMENTS:
            mine = self.figures(ours, measure, processes, figure)
            theirs = self.figures(rival, measure, processes, figure)
            if mine and len(mine) == len(theirs):
                title = f"{ours}: {measure}, {figure}, by {processes}"
                yield [title, rival, f"{ratio(mine, theirs):.2f}", f"{least:g}"]

    def _table(self, measure: str, processes: int) -> Table:
        """Return the medians of a measure, sorted by its first figure."""
        runs = [
            run for run in self.runs if (run["measure"], run["processes"]) == (measure, processes)
        ]
        names = max((run["figures"] for run in runs), key=len)
        rows = []
        for each in self.contenders:
            found = [self.figures(each.name, measure, processes, name) for name in names]
            if found[0]:
                cells = [spread(values, ",.1f") if values else "" for values in found]
                rows.append((median(found[0]), [each.title, *cells]))
        rows.sort(key=lambda row: row[0], reverse=True)
        return Table(f"{measure}, by {processes}", ("", *names), [cells for _, cells in rows])

    def _versions(self) -> Iterator[list[str]]:
        peers = {each.peer.title: each.peer for each in self.contenders}
        for title, interpreter in self.interpreters.items():
            yield [title, ", ".join(peers[title].environment.pins), interpreter]
