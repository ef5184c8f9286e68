"""The German translation: complete, current, and shown (O15)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from gettext import GNUTranslations
from pathlib import Path
from typing import Final
from urllib.parse import urljoin

import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import load_command_class
from django.test import Client
from django.utils.translation import override
from pytest_django import Settings

import delayed_queue
from delayed_queue.models import Message
from tests.admin.operations import run
from tests.admin.support import told
from tests.support.factories import MessageFactory

ROOM = Path(delayed_queue.__file__).parent
APPS = ("http", "notifications", "spark", "tasks")
# Catalogues by the folder of their texts; an app's has only texts that the core lacks.
CATALOGUES = ("", *APPS)
PLURALS = {"ngettext", "ngettext_lazy"}
MARKS = {"_", "gettext", "gettext_lazy", "gettext_noop", *PLURALS}
_TRANSLATE = re.compile(r"""{% translate (["'])(.*?)\1(?: as \w+)? %}""")
_BLOCK = re.compile(r"{% blocktranslate.*? %}(.*?){% endblocktranslate %}")
_VARIABLE = re.compile(r"{{ (\w+) }}")
_ENTRY = re.compile(r'^(msgid|msgid_plural|msgstr(?:\[\d\])?) ((?:".*"\n?)+)', re.MULTILINE)
_PLACE = re.compile(r"%(?:\(\w+\))?[srd]")


def wanted(room: str) -> set[str]:
    """Return the translated texts in the modules and templates of the core, or of an app."""
    found = set(_wanted(ROOM / room, () if room else APPS))
    return found - wanted("") if room else found


def _wanted(folder: Path, but: tuple[str, ...]) -> Iterator[str]:
    for path in folder.rglob("*.py"):
        if path.relative_to(folder).parts[0] not in but:
            yield from marked(ast.parse(path.read_text(encoding="utf-8")))
    for path in (folder / "templates").rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        yield from (match[2] for match in _TRANSLATE.finditer(text))
        for match in _BLOCK.finditer(text):
            yield from _VARIABLE.sub(r"%(\1)s", match[1]).split("{% plural %}")


def marked(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MARKS:
            for argument in node.args[: 2 if node.func.id in PLURALS else 1]:
                if isinstance(argument, ast.Constant):
                    yield str(argument.value)


def _messages(room: str) -> Path:
    return ROOM / room / "locale/de/LC_MESSAGES"


def written(room: str) -> dict[str, str]:
    """Return the translations of the .po file; a plural has each form by its original."""
    found: dict[str, str] = {}
    originals: list[str] = []
    for name, text in _ENTRY.findall((_messages(room) / "django.po").read_text(encoding="utf-8")):
        value = "".join(map(ast.literal_eval, text.splitlines()))
        if name == "msgid":
            originals = []
        if name.startswith("msgid"):
            originals.append(value)
        else:
            found[originals[int(name[7]) if "[" in name else 0]] = value
    return found


def compiled(room: str) -> tuple[dict[str, str], set[str]]:
    """Return the compiled texts, and the originals that have a plural."""
    with (_messages(room) / "django.mo").open("rb") as file:
        # gettext has no other way to list the compiled texts.
        catalogue = GNUTranslations(file)._catalog  # type: ignore[attr-defined] # noqa: SLF001
    plurals = {key[0] for key in catalogue if isinstance(key, tuple)}
    singles = {key: text for key, text in catalogue.items() if isinstance(key, str)}
    return singles, plurals


@pytest.mark.parametrize("room", CATALOGUES)
class TestCatalogue:
    def test_each_text_is_translated_and_no_other_is(self, room: str) -> None:
        texts = written(room)
        assert texts.keys() - {""} == wanted(room)
        assert all(texts.values())

    def test_each_translation_has_the_places_of_its_text(self, room: str) -> None:
        texts = {text: said for text, said in written(room).items() if text}
        wrong = {
            text: said
            for text, said in texts.items()
            if sorted(_PLACE.findall(text)) != sorted(_PLACE.findall(said))
        }
        assert wrong == {}

    def test_what_is_compiled_is_what_is_written(self, room: str) -> None:
        texts, (said, plurals) = written(room), compiled(room)
        assert said.keys() <= texts.keys()
        assert {text: texts[text] for text in said} == said
        assert plurals <= texts.keys()
        assert len(texts) - len(said) == 2 * len(plurals), "both forms of each"

    def test_what_the_admin_and_the_commands_show_is_translated(self, room: str) -> None:
        """Labels, helps and columns in Python, and every word of a template."""
        folder, found = ROOM / room, {}
        modules = [*(folder / "admin").rglob("*.py"), *folder.glob("admin.py")]
        modules += [*folder.glob("models.py"), *(folder / "management").rglob("*.py")]
        for path in modules:
            found[path.name] = list(unmarked(ast.parse(path.read_text(encoding="utf-8"))))
        for path in (folder / "templates/admin").rglob("*.html"):
            bare = _MARKUP.sub(" ", path.read_text(encoding="utf-8"))
            found[path.name] = [each for each in bare.splitlines() if _SPOKEN.search(each)]
        assert {name: texts for name, texts in found.items() if texts} == {}


def test_a_text_of_several_catalogues_is_translated_alike() -> None:
    """Django merges the catalogues of all apps into one."""
    said: dict[str, set[str]] = {}
    for room in CATALOGUES:
        for text, translation in written(room).items():
            said.setdefault(text, set()).add(translation)
    assert {text: found for text, found in said.items() if text and len(found) > 1} == {}


@pytest.mark.parametrize(
    ("language", "said"),
    [("de", "Tote Nachrichten und ihre Fehler zeigen"), ("en", "Show dead letters and their")],
)
def test_the_help_of_a_command_is_in_the_language_of_the_project(language: str, said: str):
    with override(language):
        parser = load_command_class("delayed_queue", "queuedead").create_parser("", "queuedead")
        assert said in parser.format_help()


_SHOWN = {
    "label",
    "help",
    "warning",
    "title",
    "hint",
    "description",
    "help_text",
    "search_help_text",
    "list_heading",
    "verbose_name",
    "verbose_name_plural",
    # In reports of operations.
    "past",
    "noun",
    "left",
}
# Functions that take an operator's text, with the position of the argument.
_TELLING: Final = {
    "message_user": 1, "leave": 0, "_note": -1, "notes.append": 0, "Report": 0, "add_error": 1,
    "ValidationError": 0,
}  # fmt: skip
_SPOKEN = re.compile(r"[A-Za-z]{3,}")
_MARKUP = re.compile(
    r"{% block bodyclass %}.*?{% endblock %}|&\w+;|{#.*?#}"
    r"|{% blocktranslate.*?{% endblocktranslate %}|{%.*?%}|{{.*?}}|<code>.*?</code>|<[^>]*>",
    re.S,
)


def unmarked(module: ast.Module) -> Iterator[str]:
    """Yield untranslated texts in positions for pages and help."""
    for node in ast.walk(module):
        named: list[tuple[str | None, ast.expr | None]] = []
        if isinstance(node, ast.ClassDef):
            named = [pair for each in node.body for pair in _assigned(each)]
        elif isinstance(node, ast.Call):
            named = [(each.arg, each.value) for each in node.keywords] + _told(node)
        for name, value in named:
            if name in _SHOWN | _TELLING.keys() and value is not None and _is_bare(value):
                yield f"{name}={ast.unparse(value)}"


def _assigned(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yield each name with its value, even in ``name, label = "close", _("Send again")``."""
    if not isinstance(node, ast.Assign):
        return
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        yield from zip(map(ast.unparse, target.elts), value.elts, strict=True)
    else:
        yield ast.unparse(target), value


def _told(call: ast.Call) -> list[tuple[str | None, ast.expr | None]]:
    """Return the operator's text among the arguments of a call."""
    called = ast.unparse(call.func)
    found = [(name, at) for name, at in _TELLING.items() if f".{called}".endswith(f".{name}")]
    return [(name, call.args[at]) for name, at in found if len(call.args) > max(at, 0)]


def _is_bare(value: ast.expr) -> bool:
    """True if it is a text, or one with placeholders, that has words."""
    parts = value.values if isinstance(value, ast.JoinedStr) else [value]
    texts = (each.value for each in parts if isinstance(each, ast.Constant))
    return any(isinstance(each, str) and _SPOKEN.search(each) for each in texts)


@pytest.mark.django_db
def test_the_pages_are_in_the_language_of_the_project(admin_client: Client, settings: Settings):
    settings.LANGUAGE_CODE = "de"
    MessageFactory.create(key="late", due=True)
    shown = {
        "queueoverview/": ("1 ohne Worker", "Älteste", "keiner in diesem Prozess"),
        "message/": ("Schlüssel", "spät"),
        f"message/{Message.objects.get().pk}/change/": ("Verwerfen", "Zeitachse"),
        "worker/": ("Noch kein Worker ist gestartet",),
        "queueoverview/history/?kind=orders|json": ("Verlauf von orders", "Laufzeit"),
        "../delayed_queue_http/topic/add/": ("Kann nur sinken",),
        "../delayed_queue_notifications/": ("Auf einen Blick", "beginnen Sie hier"),
        "../delayed_queue_notifications/notification/dashboard/": ("wartet am längsten",),
        "../delayed_queue_spark/pipelinereport/": ("Noch gibt es keinen Bericht",),
        "../delayed_queue_tasks/taskresult/": ("Der Anfang einer Id",),
    }
    for url, words in shown.items():
        html = admin_client.get(urljoin("/admin/delayed_queue/", url)).content.decode()
        assert [each for each in words if each not in html] == [], url


@pytest.mark.django_db
def test_an_operation_answers_in_the_language_of_its_operator_and_is_recorded_in_english(
    admin_client: Client, settings: Settings
):
    settings.LANGUAGE_CODE = "de"
    url = "/admin/delayed_queue/message/"
    for key in ("a", "b"):
        MessageFactory.create(key=key, scheduled=True)

    answer = run(admin_client, "deliver", url)
    assert told(answer) == ["Fällig gestellt \N{EN DASH} 2 Nachrichten: a, b."]
    answer = run(admin_client, "deliver", url)
    assert told(answer) == ["Übersprungen \N{EN DASH} 2 Nachrichten, schon fällig: a, b."]

    recorded = set(LogEntry.objects.values_list("change_message", flat=True))
    assert {each.partition(".")[0] for each in recorded} == {"Made due"}
