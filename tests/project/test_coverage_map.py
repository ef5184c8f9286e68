"""docs/internals/coverage.md names each line of the contract and the tests that hold it."""

from __future__ import annotations

from collections import Counter

from tests.support.contract_map import PAGE, files_by_line, promised_lines, written_page


def test_the_page_is_as_make_map_writes_it():
    assert PAGE.read_text() == written_page(), "run `make map`"


def test_each_line_has_a_test():
    files = files_by_line()

    assert [line for line in promised_lines() if not files[line]] == []


def test_each_line_that_a_test_names_is_on_the_page_once():
    counts = Counter(promised_lines())

    assert set(counts.values()) == {1}
    assert sorted(set(files_by_line()) - set(counts)) == []


def test_the_lines_of_a_contract_stand_in_order():
    lines = [(each[0], int(each[1:])) for each in promised_lines()]

    for letter in {letter for letter, _ in lines}:
        numbers = [number for each, number in lines if each == letter]
        assert numbers == sorted(numbers), letter
