"""The admin's pages in a browser: no page is cut, or wider than its window.

``ADMIN_PICTURES=directory`` saves a picture of each page there.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from pytest_django import Settings

from tests.support import gallery
from tests.support.browser import Browser, chromium

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.long]

# A phone, and a laptop of 1366 px without its scroll bar.
WIDTHS = (390, 1351)
# Colours move nothing, so the dark theme is only for pictures.
PICTURES = os.environ.get("ADMIN_PICTURES")
THEMES = ("light", "dark") if PICTURES else ("light",)
# Pages behind a button: the page of the button, and its selector.
BUTTONS = {
    "confirm": ("delayed_queue_message-change", ".dq-operations .dq-danger"),
    "pause": ("queues", ".dq-switch [name=pause]"),
    "limit-all": ("history-groups", "[name=limit_all]"),
    "limit-group": ("history-groups", "[name=limit_group]"),
    "resume-group": ("history-groups", ".dq-groups [name=resume_group]"),
    "run": ("failures-queues", "[name=redrive]"),
}
# Pages beside the lists whose layout is checked on each Django.
SHORT = {
    "index", "queues", "failures-queues", "history-1h", "at-a-glance",
    "delayed_queue_message-change", "delayed_queue_schedule-change",
    "delayed_queue_worker-change", "history-groups", "provider", "tasks-charts",
    "delayed_queue_tasks_taskresult-change",
}  # fmt: skip
# Overflow of the page, and of each box in it that scrolls or cuts.
HIDDEN = """
[...document.querySelectorAll("*")].filter((each) =>
    each === document.documentElement
    || ["auto", "scroll", "hidden"].includes(getComputedStyle(each).overflowX)
).filter((each) =>
    each.scrollWidth > each.clientWidth && each.clientWidth > 1
    && each.closest(".visually-hidden") === null
).map((each) =>
    `${each.tagName} ${each.className}: ${each.scrollWidth} > ${each.clientWidth}`
).join(", ")
"""
# A list that leaves part of its space empty.
NARROW = """
[...document.querySelectorAll("#changelist .results")].map(
    (each) => [each.clientWidth, document.querySelector("#changelist").clientWidth]
).filter(([list, all]) => list < 0.95 * all).map(([list, all]) => `list: ${list} < ${all}`)
.join(", ")
"""
# A path above the page at the edge of the window, as unstyled text does.
BARE = """
[...document.querySelectorAll(".breadcrumbs")].filter(
    (each) => getComputedStyle(each).paddingLeft === "0px"
).map(() => "breadcrumbs without a style").join(", ")
"""
# Colours in print: the background, and the lines and words of charts.
INKS = """
[getComputedStyle(document.body).backgroundColor].concat(
    [...document.querySelectorAll(".dq-charts .dq-line")].map((e) => getComputedStyle(e).stroke),
    [...document.querySelectorAll(".dq-figure :is(figcaption, div)")].map(
        (e) => getComputedStyle(e).color))
"""
# Buttons are hidden in print.
LIVE_BUTTON = "getComputedStyle(document.querySelector('.dq-live:has(button)')).display"


@pytest.fixture(params=["en", "de"])
def language(request: pytest.FixtureRequest, settings: Settings) -> str:
    """In both languages, since German words are longer."""
    settings.LANGUAGE_CODE = request.param
    return str(request.param)


@pytest.fixture
def browser(live_server: Any, language: str) -> Iterator[Browser]:
    gallery.furnish()
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("operator"))
    with chromium() as found:
        found.log_in(live_server.url, client.cookies["sessionid"].value)
        yield found


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_of_a_page_lies_beyond_its_edge(browser, live_server, language, width):
    found = {}
    for theme in THEMES:
        browser.look(width=width, theme=theme)
        for name, load in pages(browser, live_server.url).items():
            load()
            keep(browser, f"{language}-{width}-{theme}-{name}")
            assert browser.evaluate("innerWidth") == width
            found[name, theme] = faults(browser)
    assert not any(found.values()), "\n".join(str(each) for each in found.items() if each[1])


@pytest.mark.parametrize("language", ["en"], indirect=True)
def test_lists_and_main_pages_fit_in_short(browser: Browser, live_server: Any):
    """The part that `make pairs` runs on each Django."""
    found = {}
    paths = gallery.pages()
    for (width, theme), name in product(product(WIDTHS, THEMES), paths):
        if name.endswith("-list") or name in SHORT:
            browser.look(width=width, theme=theme)
            browser.open(live_server.url + paths[name])
            keep(browser, f"short-{width}-{theme}-{name}")
            found[name, width] = faults(browser)
    assert not any(found.values()), "\n".join(str(each) for each in found.items() if each[1])


def faults(browser: Browser) -> str:
    """Return the faults of the page's layout; none for a good page."""
    return ", ".join(filter(None, map(browser.evaluate, (HIDDEN, NARROW, BARE))))


def test_a_time_zone_of_three_words_is_shown_whole(browser: Browser, live_server: Any):
    browser.look(width=WIDTHS[1])
    browser.open(live_server.url + gallery.pages()["delayed_queue_schedule-change"])
    typed = "document.querySelector('[name=timezone]')"
    assert browser.evaluate(f"{typed}.value") == "America/Argentina/Buenos_Aires"
    assert browser.evaluate(f"{typed}.scrollWidth <= {typed}.clientWidth")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_charts_are_readable_on_paper(browser: Browser, live_server: Any, theme: str):
    browser.look(width=WIDTHS[1], theme=theme, media="print")
    browser.open(live_server.url + gallery.pages()["history-1h"])
    keep(browser, f"print-{theme}")
    paper, *inks = browser.evaluate(INKS)
    assert len(inks) > 4
    assert browser.evaluate(LIVE_BUTTON) == "none"
    assert luminance(paper) == 1
    pale = {ink for ink in inks if 1.05 / (luminance(ink) + 0.05) < 4.5}
    assert not pale


def luminance(colour: str) -> float:
    """Return the brightness of ``rgb(r, g, b)`` as WCAG defines it; 1 is white."""
    parts = [int(each) / 255 for each in re.findall(r"\d+", colour)[:3]]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return float(sum(map(operator.mul, (0.2126, 0.7152, 0.0722), linear)))


def pages(browser: Browser, site: str) -> dict[str, Callable[[], None]]:
    """Return the action that loads each page."""
    paths = gallery.pages()

    def load(path: str) -> Callable[[], None]:
        return lambda: browser.open(site + path)

    def press(path: str, button: str) -> Callable[[], None]:
        return lambda: browser.press(site + path, button)

    return {name: load(path) for name, path in paths.items()} | {
        name: press(paths[page], button) for name, (page, button) in BUTTONS.items()
    }


def keep(browser: Browser, name: str) -> None:
    if PICTURES:
        browser.shoot(Path(PICTURES) / f"{name}.png")
