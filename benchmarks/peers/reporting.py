"""A record as Markdown: what it was measured on, what was measured, what was not run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from benchmarks.peers.aims import ONE, OURS, ratio, reached
from benchmarks.peers.recording import Record


def as_markdown(record: Record) -> str:
    """Return all tables for which there are runs."""
    sections = [
        *_section("Against the aims", ("", "ours", "aim", "best rival"), reached(record)),
        *_drains(record, "Drain of a backlog", OURS, list(record.contenders)),
        *_drains(record, "One message at a time", ONE, _one_by_one(record)),
        *_section("Offers of one producer", OFFER, _offers(record)),
        *_section("Pick-up on an idle queue", PICKUP, _pickups(record)),
        *_section("Of a group at a time", GROUPS, _groups(record)),
        *_section("An idle worker", ("", "% of a core"), _idles(record)),
        *_section("Not run", ("", "reason"), _not_run(record)),
        *_section("Versions", ("", "requirements", "interpreter"), _versions(record)),
        *_section("Machine", ("", ""), record.machine.items()),
    ]
    return "\n".join(sections) + "\n"


def _section(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    cells = [_row(each) for each in rows]
    if cells:
        alignment = ["---", *["--:" if len(header) > 2 else "---"] * (len(header) - 1)]
        yield from (f"### {title}", "", _row(header), _row(alignment), *cells, "")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _one_by_one(record: Record) -> list[str]:
    return [name for name, each in record.contenders.items() if each["batch"] == 1]


def _drains(record: Record, title: str, ours: str, names: Sequence[str]) -> Iterator[str]:
    """Yield a table of drains, fastest first, with how many times as fast ours is."""
    counts = sorted({run.processes for run in record.runs if run.measure == "drain"})
    header = ["messages per second"]
    for count in counts:
        header += [f"{count} process{'es' if count > 1 else ''}", f"{ours} is"]
    header += ["client / server µs a message", "WAL, bytes a message"]
    ranked = [name for name in _ranked(record, "drain", "rate", counts[:1]) if name in names]
    return _section(title, header, [_drain(record, name, ours, counts) for name in ranked])


def _drain(record: Record, name: str, ours: str, counts: Sequence[int]) -> list[str]:
    cells = [_name(record, name)]
    for count in counts:
        times = ratio(record, ours, name, "drain", "rate", count)
        cells.append(_spread(record, name, "drain", "rate", count))
        cells.append("" if times is None or name == ours else f"{times:.2f} times")
    client = record.median(name, "drain", "client_us", counts[0])
    server = record.median(name, "drain", "server_us", counts[0])
    wal = record.median(name, "drain", "wal_bytes", counts[0])
    return [*cells, f"{_number(client)} / {_number(server)}", _number(wal)]


OFFER: Final = ("messages per second", "one by one", "in bulk", "WAL, bytes a message one by one")
GROUPS: Final = ("four processes, handlers of 2 ms", "handled", "too many at a time", "the most")
PICKUP: Final = ("from offer to handler, ms", "p50", "p99", "longest")


def _offers(record: Record) -> Iterator[Sequence[str]]:
    for name in _ranked(record, "offer", "single_rate"):
        yield (
            record.contenders[name]["title"],
            _spread(record, name, "offer", "single_rate"),
            _spread(record, name, "offer", "bulk_rate"),
            _number(record.median(name, "offer", "single_wal_bytes")),
        )


def _pickups(record: Record) -> Iterator[Sequence[str]]:
    for name in reversed(_ranked(record, "pickup", "p50_ms")):
        figures = (record.median(name, "pickup", each) for each in ("p50_ms", "p99_ms", "max_ms"))
        yield (_name(record, name), *(f"{each:.1f}" for each in figures if each is not None))


def _groups(record: Record) -> Iterator[Sequence[str]]:
    for name in record.contenders:
        if _has(record, name, "groups"):
            figures = (record.figures(name, "groups", each) for each in ("handled", "violations"))
            most = max(record.figures(name, "groups", "most"))
            handled, violations = map(sum, figures)
            yield _name(record, name), _number(handled), f"{violations:,.0f}", f"{most:.0f}"


def _idles(record: Record) -> Iterator[Sequence[str]]:
    for name in reversed(_ranked(record, "idle", "percent")):
        yield _name(record, name), f"{record.median(name, 'idle', 'percent'):.2f}"


def _not_run(record: Record) -> Iterator[Sequence[str]]:
    for name, reason in record.not_run.items():
        yield name, " ".join(reason.split())[-300:].replace("|", "\\|")


def _versions(record: Record) -> Iterator[Sequence[str]]:
    seen: set[str] = set()
    for each in record.contenders.values():
        if each["peer"] in seen or each["peer"] not in record.versions:
            continue
        seen.add(each["peer"])
        versions = record.versions[each["peer"]]
        interpreter = "Python" if "Python" in versions else "Node.js"
        yield each["title"], ", ".join(each["pins"]), f"{interpreter} {versions[interpreter]}"


def _ranked(
    record: Record, measure: str, figure: str, processes: Sequence[int] = (1,)
) -> list[str]:
    """Return the contenders that have runs of the measure, the highest median first."""

    def middle(name: str) -> float:
        found = (record.median(name, measure, figure, count) for count in processes)
        return next((each for each in found if each is not None), 0.0)

    return sorted((name for name in record.contenders if _has(record, name, measure)), key=middle)[
        ::-1
    ]


def _has(record: Record, name: str, measure: str) -> bool:
    return any((run.contender, run.measure) == (name, measure) for run in record.runs)


def _name(record: Record, name: str) -> str:
    each = record.contenders[name]
    shown = f"{each['title']}: {each['settings']}"
    return f"**{shown}**" if each["kind"] == "ours" else shown


def _spread(record: Record, name: str, measure: str, figure: str, processes: int = 1) -> str:
    found = record.figures(name, measure, figure, processes)
    middle = record.median(name, measure, figure, processes)
    if middle is None:
        return ""
    return f"{_number(middle)} ({_number(min(found))}-{_number(max(found))})"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"
