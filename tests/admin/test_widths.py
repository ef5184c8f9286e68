"""The rules that keep each page of the admin within the window, read in its HTML and its styles.

``test_admin_browser`` measures the pages themselves, where there is a browser.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from django.contrib.staticfiles import finders
from django.test import Client

from tests.admin.support import page
from tests.support import gallery

STYLES = ("delayed_queue/admin.css", "notifications/pages.css")
# The boxes that scroll, and the boxes whose rows become cards.
BOXES = {"results", "dq-overview"}
# Without Django's tables of few columns, which fit: lists of models, and the log.
OWN_TABLES = ("-list", "-change", "queues", "at-a-glance")
VOID = {"br", "img", "input", "link", "meta", "wbr", "hr"}


class Tables(HTMLParser):
    """Records tables outside of a box, and cells without the name of their column."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[str, set[str]]] = []
        self.count = 0
        self.wrong: list[str] = []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        classes = set((found.get("class") or "").split())
        if tag == "table":
            self.count += 1
            if not any(BOXES & each for _, each in self.open):
                self.wrong.append(f"table {found} stands in no box that scrolls")
        is_named = "data-label" in found or "action-checkbox" in classes
        if tag == "td" and any(name == "tbody" for name, _ in self.open) and not is_named:
            self.wrong.append(f"td {found} does not name its column")
        if tag not in VOID:
            self.open.append((tag, classes))

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass


@pytest.mark.django_db
def test_each_cell_of_each_page_names_its_column_and_each_table_can_scroll(admin_client: Client):
    gallery.furnish()
    tables, wrong = 0, []
    pages = {name: path for name, path in gallery.pages().items() if name.endswith(OWN_TABLES)}
    for name, path in pages.items():
        found = Tables()
        html = page(admin_client, path)
        found.feed(html[html.index('id="content-main"') :])
        tables += found.count
        wrong += [f"{name}: {each}" for each in found.wrong]
    assert tables > len(pages) / 2
    assert not wrong, "\n".join(wrong)


def rules(name: str) -> list[tuple[str, str]]:
    """Return the rules of a style sheet, those for narrow windows included."""
    found = finders.find(name)
    assert isinstance(found, str)
    css = re.sub(r"/\*.*?\*/", "", Path(found).read_text(encoding="utf-8"), flags=re.DOTALL)
    return [(each[0].strip(), each[1]) for each in re.findall(r"([^{}]+)\{([^{}]*)\}", css)]


def test_r6_each_variable_of_django_has_a_value_under_other_themes():
    css = "".join(Path(str(finders.find(each))).read_text(encoding="utf-8") for each in STYLES)
    [fallbacks] = [body for selector, body in rules(STYLES[0]) if selector == ":where(:root)"]
    given = set(re.findall(r"(--[\w-]+):", fallbacks))
    used = set(re.findall(r"var\((--[\w-]+)\)", css))
    assert {each for each in used if not each.startswith("--dq-")} <= given
