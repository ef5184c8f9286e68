"""The pages: their links, paths, commands and words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import delayed_queue
from tests.support import documents
from tests.support.documents import DOCS, ROOT

GLOSSARY = DOCS / "glossary.md"
DESIGNS = DOCS / "design-and-seeds.md"
# Pages of the HTTP side, which may use the word job, and addresses of other sites; django-tasks-db
# is a name.
OF_HTTP = {
    DOCS / "guides/rest-api.md", DOCS / "guides/serving-http.md", DOCS / "guides/callbacks.md",
    DOCS / "guides/admin.md", DOCS / "guides/demo.md", DOCS / "internals/callbacks.md",
    DOCS / "operations/callbacks.md", DOCS / "operations/security.md", DOCS / "benchmarks.md",
    ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "README.md",
    DOCS / "internals/concurrency.md", DOCS / "internals/concurrency-jobs.md",
    DOCS / "internals/concurrency-offers.md", DOCS / "internals/concurrency-settling.md",
    DOCS / "internals/concurrency-spark.md", DOCS / "comparison.md", DESIGNS, GLOSSARY,
    DOCS / "how-do-i.md", DOCS / "operations/rights.md", DOCS / "guides/rest-topics.md",
    DOCS / "internals/coverage.md",
}  # fmt: skip
# Pages that may use Django's word task.
OF_TASKS = {
    DOCS / "internals/coverage.md",
    DOCS / "guides/tasks.md", DOCS / "coming-from.md", DOCS / "quickstart.md",
    DOCS / "architecture.md", DOCS / "comparison.md", DOCS / "benchmarks-peers.md",
    DOCS / "guides/workers.md", DOCS / "index.md", DOCS / "internals/concurrency.md",
    ROOT / "CHANGELOG.md", ROOT / "README.md", DOCS / "guides/demo.md",
    DOCS / "guides/rest-api.md", DOCS / "benchmarks-growth.md", DOCS / "how-do-i.md",
    DOCS / "guides/testing.md", DOCS / "operations/rights.md", DOCS / "reference/api.md",
    DOCS / "guides/cron.md", DOCS / "guides/stopping.md", DOCS / "guides/watching-workers.md",
    DOCS / "guides/rest-topics.md", DOCS / "reference/api-apps.md",
}  # fmt: skip
# First words of the comparison tables.
OF_QUEUES = re.compile(r"\| \| (?:runs on|retries|a queue that is late) \|")
WORDS_OF_OTHERS = r"(?<!django-)(?<!`)\b(?:jobs?|tasks?)\b"
PAGES = [pytest.param(page, id=documents.name_of(page)) for page in documents.pages()]


class TestPages:
    @pytest.mark.parametrize("page", PAGES)
    def test_relative_links_resolve(self, page: Path) -> None:
        for target in documents.links(page):
            if target.startswith(("https://", "http://")):
                continue
            name, _, anchor = target.partition("#")
            found = (page.parent / name).resolve() if name else page
            assert found.is_file(), f"{documents.name_of(page)} links to {target}"
            assert found.is_relative_to(ROOT)
            if anchor:
                assert anchor in documents.anchors(found), f"no heading for {target}"

    @pytest.mark.parametrize("page", PAGES)
    def test_named_paths_and_commands_exist(self, page: Path) -> None:
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        text = documents.read(page)
        for path in re.findall(r"`((?:tests|docs|delayed_queue|example_project)/[\w./]+)`", text):
            assert (ROOT / path).exists(), path
        for target in re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"

    @pytest.mark.parametrize("page", PAGES)
    def test_the_glossarys_words_are_used(self, page: Path) -> None:
        # On these pages they are words of Spark and of schedulers.
        if page.name in {
            "spark.md", "pipeline.md", "archives.md", "running-pipelines.md", "clusters.md",
            "concurrency-spark.md",
        }:  # fmt: skip
            return
        words = r"(?<!django-)\b(?:tasks?)\b" if page in OF_HTTP else WORDS_OF_OTHERS
        if page in OF_TASKS:
            words = r"(?!)" if page in OF_HTTP else r"(?<!`)\bjobs?\b"
        text = re.sub(r"\]\([^)]*\)", "]", documents.prose(page))  # without the targets of links
        assert not re.findall(words, text, re.IGNORECASE)

    def test_every_page_is_in_the_table_of_contents(self) -> None:
        named = {
            line.strip()
            for block in documents.blocks(DOCS / "index.md", "{toctree}")
            for line in block.text.splitlines()
            if line and not line.startswith(":")
        }
        inside = {
            page.relative_to(DOCS).with_suffix("").as_posix()
            for page in documents.pages()
            if page.is_relative_to(DOCS)
        }
        assert named == inside - {"index"}

    def test_llms_txt_names_every_page_once(self) -> None:
        named = re.findall(r"^- \[[^]]+\]\((\S+)\): .+\.$", documents.read(DOCS / "llms.txt"), re.M)
        pages = [
            p.relative_to(DOCS).as_posix() for p in documents.pages() if p.is_relative_to(DOCS)
        ]
        assert sorted(named) == sorted(pages)

    @pytest.mark.parametrize("page", PAGES)
    def test_guides_are_short(self, page: Path) -> None:
        if page.parent.name == "guides":
            assert len(documents.read(page).splitlines()) <= 300

    def test_changelog_has_the_version(self) -> None:
        assert f"## [{delayed_queue.__version__}]" in documents.read(ROOT / "CHANGELOG.md")


def test_the_page_of_the_designs_names_what_exists() -> None:
    """Its paths lie below tests/ or the package, and its statements are constants of stores."""
    text = documents.read(DESIGNS)
    places = (ROOT / "tests", ROOT / "delayed_queue", ROOT)
    found = re.findall(r"`([\w/]+\.py)`", text)
    assert len(found) > 40
    for path in found:
        assert any((place / path).is_file() for place in places), path
    source = "".join(path.read_text("utf-8") for path in (ROOT / "delayed_queue").rglob("*.py"))
    rows = re.findall(r"`([A-Z][A-Z_]{3,})`(?: in `|, `DROP| \|)", text)
    assert len(rows) > 10
    for name in rows:
        assert re.search(rf"^{name}: Final", source, re.MULTILINE), name


def test_every_cell_of_the_comparison_has_its_source() -> None:
    page = DOCS / "comparison.md"
    headers = [line for line in documents.prose(page).splitlines() if OF_QUEUES.match(line)]
    found = [documents.table(page, *cells_of(header)) for header in headers]
    assert [len(rows) for rows in found] == [15, 15, 5]
    for name, *cells in (row for rows in found for row in rows):
        assert name
        for cell in cells:
            assert re.fullmatch(r"\[[^]]+\]\([^)\s]+\)", cell), f"{name}: {cell} has no link"


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]
