"""Numbers with English and German separators, on all pages of the admin."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.utils.translation import override

import delayed_queue
from delayed_queue.admin.formats import counted, number, per_second, percent, seconds
from delayed_queue.models import Worker
from delayed_queue.observe.overview import Count
from tests.admin.support import page
from tests.support.factories import from_now

ROOM = Path(delayed_queue.__file__).parent


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


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("language", "shown"), [("en", ("1,234,567", "0.5/s")), ("de", ("1.234.567", "0,5/s"))]
)
def test_a_page_has_its_numbers_in_the_language(admin_client, settings, language, shown):
    settings.LANGUAGE_CODE = language
    Worker.objects.create(
        name="w", host="h", pid=1, process=0, queues=["orders"], version="1",
        started_at=from_now(), heartbeat_at=from_now(), done=1234567, rates={"orders": 0.5},
    )  # fmt: skip
    html = page(admin_client, "/admin/delayed_queue/worker/")
    assert all(each in html for each in shown)


def _written_by_hand(path: Path) -> Iterator[str]:
    """Yield the calls that format a number without the active language."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            spec = ast.unparse(node.format_spec)
            if re.search(r",|[.]\d*[g%]", spec) and "float(" not in spec:
                yield f"{path.name}:{node.lineno} {ast.unparse(node)}"


def test_no_page_writes_a_number_by_hand():
    pages = [*(ROOM / "admin").glob("*.py"), *ROOM.glob("*/admin/*.py"), *ROOM.glob("*/admin.py")]
    found = [each for path in pages for each in _written_by_hand(path)]
    # formats.py rounds to two significant digits, which the language then formats.
    assert [each for each in found if not each.startswith("formats.py")] == []
