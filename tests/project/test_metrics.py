"""docs/architecture.md states the metrics of the code, and describes every package."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise

from tests.support import documents, metrics
from tests.support.documents import DOCS, ROOT

PAGE = DOCS / "architecture.md"


def test_the_figures_are_those_of_the_code() -> None:
    rows = documents.table(PAGE, "figure", "value")
    assert {row[0]: int(row[1]) for row in rows} == metrics.figures()


def test_no_package_has_more_lines_than_its_limit() -> None:
    """A limit also follows its package down to the budget, and never back."""
    limits = {
        re.sub("`", "", name): int(limit.replace(",", ""))
        for name, limit, _ in documents.table(PAGE, "package", "limit", "budget")
    }
    lines = metrics.lines()
    assert limits.keys() == lines.keys()
    assert [
        name for name, found in lines.items() if not limits[name] - 200 < found <= limits[name]
    ] == []


def test_every_package_is_drawn_and_described() -> None:
    packages = set(metrics.packages()) - {"migrations"}
    picture = documents.blocks(PAGE, "text")[0].text
    drawn = {word for line in picture.splitlines() for word in re.findall(r"[a-z]+", line)}
    rows = documents.table(PAGE, "package", "contents")
    described = {name for row in rows for name in documents.INLINE_CODE.findall(row[0])}
    assert packages <= drawn
    assert described == packages


def test_the_layers_are_those_of_the_contract() -> None:
    """The layers of the picture are those of the import contract, in order."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(each for each in contracts["contracts"] if each["type"] == "layers")["layers"]
    level = {
        name: number for number, layer in enumerate(layers) for name in re.findall(r"[a-z]+", layer)
    }
    picture = re.split("─{20,}", documents.blocks(PAGE, "text")[0].text)
    drawn = [set(re.findall(r"[a-z]+", part)) & level.keys() for part in picture]
    for above, below in pairwise(drawn):
        highest = min(level[name] for name in below)
        assert max(level[name] for name in above) < highest, (above, below)


# The core runs without the apps, except health endpoints and code of other libraries.
APPS = re.compile(r"callback|topic|url|spark", re.IGNORECASE)
INNOCENT = re.compile(r"hourly|add_done_callback")
CORE = (
    "db", "queue", "cron", "worker", "observe", "declaring.py", "facade.py", "handlers.py",
    "rates.py",
)  # fmt: skip


def test_the_core_knows_no_word_of_the_apps() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for place in (ROOT / "delayed_queue" / name for name in CORE)
        for path in (sorted(place.rglob("*.py")) if place.is_dir() else [place])
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if APPS.search(INNOCENT.sub("", line))
    ]
    assert found == []
