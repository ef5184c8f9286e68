"""docs/architecture.md says what the house is: its figures, and every room."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise

from tests.support import documents, house
from tests.support.documents import DOCS, ROOT

PAGE = DOCS / "architecture.md"


def test_the_figures_are_those_of_the_code() -> None:
    rows = documents.table(PAGE, "figure", "value")
    assert {row[0]: int(row[1]) for row in rows} == house.figures()


def test_every_room_is_drawn_and_described() -> None:
    rooms = set(house.rooms()) - {"migrations"}
    picture = documents.blocks(PAGE, "text")[0].text
    drawn = {word for line in picture.splitlines() for word in re.findall(r"[a-z]+", line)}
    rows = documents.table(PAGE, "room", "what it holds")
    described = {name for row in rows for name in documents.INLINE_CODE.findall(row[0])}
    assert rooms <= drawn
    assert described == rooms


def test_the_floors_are_those_of_the_contract() -> None:
    """Each line of the picture is above the next, and the contract says so."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(each for each in contracts["contracts"] if each["type"] == "layers")["layers"]
    level = {
        room: number for number, layer in enumerate(layers) for room in re.findall(r"[a-z]+", layer)
    }
    picture = re.split("─{20,}", documents.blocks(PAGE, "text")[0].text)
    floors = [set(re.findall(r"[a-z]+", part)) & level.keys() for part in picture]
    for above, below in pairwise(floors):
        highest = min(level[room] for room in below)
        assert max(level[room] for room in above) < highest, (above, below)


# The core is used without them; health endpoints and code of other libraries aside.
WINGS = re.compile(r"callback|topic|url|spark", re.IGNORECASE)
INNOCENT = re.compile(r"hourly|add_done_callback")
CORE = ("db", "queue", "cron", "worker", "observe", "models.py", "handlers.py")


def test_the_core_knows_no_word_of_the_wings() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for place in (ROOT / "delayed_queue" / name for name in CORE)
        for path in (sorted(place.rglob("*.py")) if place.is_dir() else [place])
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if WINGS.search(INNOCENT.sub("", line))
    ]
    assert found == []
