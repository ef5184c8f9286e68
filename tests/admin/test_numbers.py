"""Numbers with English and German separators, on all pages of the admin."""

from __future__ import annotations

import pytest
from django.utils.translation import override

from delayed_queue.admin.formats import counted, number, per_second, percent, seconds
from delayed_queue.observe.overview import Count


@pytest.mark.parametrize(
    ("said", "english", "german"),
    [
        (lambda: number(0), "0", "0"),
        (lambda: number(1234567), "1,234,567", "1.234.567"),
        (lambda: number(0.5), "0.5", "0,5"),
        (lambda: number(0.00012), "0.00012", "0,00012"),
        (lambda: number(9.96), "10", "10"),
        (lambda: number(1234.5), "1,234", "1.234"),
        (lambda: per_second(0.25), "0.25/s", "0,25/s"),
        (lambda: per_second(12345.6), "12,346/s", "12.346/s"),
        (lambda: counted(Count(2000, is_cut=True)), "2,000+", "2.000+"),
        (lambda: counted(Count(1234567, True, is_estimated=True)), "≈ 1,200,000", "≈ 1.200.000"),
        (lambda: percent(0.125), "12.5%", "12,5 %"),
        (lambda: percent(0.2, 0), "20%", "20 %"),
        (lambda: seconds(0.0123), "12 ms", "12 ms"),
        (lambda: seconds(2.25), "2.2 s", "2,2 s"),
    ],
)
def test_a_number_is_written_as_in_the_language(said, english: str, german: str):
    with override("en"):
        assert said() == english
    with override("de"):
        assert said() == german
