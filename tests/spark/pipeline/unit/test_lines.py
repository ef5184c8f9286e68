"""From lines to records: how a reader parses a block, line by line (P6)."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayed_queue.spark.pipeline import lines as module
from delayed_queue.spark.pipeline.lines import CsvReader, JsonReader, Reader, Unreadable

COLUMNS = ["key", "note"]
# Characters that CSV quotes, and others; line breaks as Spark leaves them.
CELLS = st.text(st.sampled_from('ab,"\n é'), max_size=6)


def read(
    text: str | bytes, reader: Reader | None = None, together: int = 1
) -> list[tuple[int, Any]]:
    """Return records and bad lines, numbered from 1; ``together`` lines are read at once."""
    reader = reader or CsvReader(COLUMNS, ",")
    data = text if isinstance(text, bytes) else text.encode()
    first, *others = data.split(b"\n")
    found = [reader.read(0, [first], is_start=True)]
    found += [
        reader.read(at + 1, others[at : at + together], is_start=False)
        for at in range(0, len(others), together)
    ]
    found.append(reader.end())
    assert not reader.is_open
    return sorted(
        (
            (place + 1, each)
            for one in found
            for place, each in (*zip(one.places, listed(one.records), strict=True), *one.wrong)
        ),
        key=lambda each: each[0],
    )


def listed(records: Any) -> list[Any]:
    return records if isinstance(records, list) else list(records.to_pylist())


def reasons(found: list[tuple[int, Any]]) -> dict[int, str]:
    return {line: each.reason for line, each in found if isinstance(each, Unreadable)}


class TestCsv:
    def test_a_quoted_cell_holds_line_breaks_and_the_record_is_at_its_first_line(self) -> None:
        found = read('key,note\na,"one\n\nb,two\nthree"\nc,"x"\n')
        assert found == [
            (2, {"key": "a", "note": "one\n\nb,two\nthree"}),
            (6, {"key": "c", "note": "x"}),
        ]

    @given(st.lists(st.tuples(CELLS, CELLS), max_size=8))
    def test_what_was_written_is_read(self, rows: list[tuple[str, str]]) -> None:
        written = io.StringIO()
        writer = csv.writer(written, lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerow(COLUMNS)
        starts = []
        for row in rows:
            starts.append(written.getvalue().count("\n") + 1)
            writer.writerow(row)
        expected = [
            (start, {"key": key, "note": note})
            for start, (key, note) in zip(starts, rows, strict=True)
        ]
        assert read(written.getvalue()) == expected

    @given(
        st.lists(st.text(st.sampled_from('ab,"\t\x00 é'), max_size=6), min_size=1, max_size=4),
        st.sampled_from(",\t"), st.integers(2, 4),
    )  # fmt: skip
    def test_lines_are_read_together_as_one_by_one(
        self, texts: list[str], delimiter: str, together: int
    ) -> None:
        text = "\n".join([f"key{delimiter}note", *texts])
        apart = read(text, CsvReader(COLUMNS, delimiter))
        assert read(text, CsvReader(COLUMNS, delimiter), together) == apart

    def test_a_quote_that_is_never_closed_costs_one_record(self) -> None:
        found = read('key,note\na,"one\nb,two\nc,three')
        assert reasons(found) == {2: "The line is not CSV: unexpected end of data."}
        assert [line for line, _ in found] == [2, 3, 4]
        assert found[1:] == [(3, {"key": "b", "note": "two"}), (4, {"key": "c", "note": "three"})]

    def test_nor_more_when_another_is_opened_later(self) -> None:
        found = read('key,note\na,"one\nb,two\nc,"three"\nd,"four\nfive"')
        assert reasons(found).keys() == {2}
        assert [line for line, _ in found] == [2, 3, 4, 5]
        assert found[-1] == (5, {"key": "d", "note": "four\nfive"})

    @pytest.mark.parametrize(("name", "most"), [("MOST_LINES", 3), ("MOST_CHARACTERS", 12)])
    def test_what_is_open_for_too_long_is_given_up(
        self, name: str, most: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, name, most)
        found = read('key,note\na,"one\nb,2\nc,3\nd,4"\n')
        assert reasons(found).keys() == {2}
        assert [line for line, _ in found] == [2, 3, 4, 5]

    def test_lines_that_together_are_no_record_are_looked_at_apart(self) -> None:
        found = read('key,note\na,"one\nb,two",x\nc,3')
        assert reasons(found) == {
            2: "The line is not CSV: unexpected end of data.",
            3: "It has 3 columns; the header has 2.",
        }
        assert found[-1] == (4, {"key": "c", "note": "3"})

    def test_a_line_that_is_not_utf_8_ends_what_is_open(self) -> None:
        found = read(b'key,note\na,"one\n\xff\nc,3')
        assert reasons(found) == {
            2: "The line is not CSV: unexpected end of data.", 3: "It is not UTF-8.",
        }  # fmt: skip
        assert found[-1][0] == 4

    def test_a_cell_is_as_large_as_a_payload_may_be(self) -> None:
        found = read(f"key,note\na,{'x' * 200_000}")
        assert len(found[0][1]["note"]) == 200_000

    def test_a_file_of_another_header_is_not_read_by_this_one(self) -> None:
        assert reasons(read("note,key\n")) == {1: "The header differs from the others."}

    def test_only_the_first_block_has_a_header(self) -> None:
        reader = CsvReader(COLUMNS, ",")
        found = reader.read(0, [b"key,note"], is_start=False)
        assert listed(found.records) == [{"key": "key", "note": "note"}]
        assert not reader.read(1, [b'a,"'], is_start=False).places
        assert reader.is_open
        assert [place for place, _ in reader.end().wrong] == [1]
        assert not reader.is_open


class TestJson:
    def test_a_name_that_comes_twice_is_put_aside(self) -> None:
        found = read(
            '{"key": "a"}\n{"key": "a", "key": "b"}\n{"n": {"x": 1, "x": 1}}', JsonReader()
        )
        assert found[0] == (1, {"key": "a"})
        said = "The line has an object with the same name twice."
        assert reasons(found) == {2: said, 3: said}

    def test_each_line_is_an_object_or_says_why_not(self) -> None:
        found = read(b'\xef\xbb\xbf{}\n \n[]\n{"a"\n\xff\n{"b": 1}', JsonReader())
        assert reasons(found) == {
            3: "The line is no JSON object.", 4: "The line is not JSON (character 5).",
            5: "It is not UTF-8.",
        }  # fmt: skip
        assert found[0] == (1, {})
        assert found[-1] == (6, {"b": 1})
