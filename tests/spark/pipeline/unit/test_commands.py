"""The pipeline's command line, output and errors: without a JVM and a database."""

from __future__ import annotations

import io
import json
import zipfile
from argparse import ArgumentParser
from pathlib import Path

import pytest

from delayed_queue.management.arguments import FORMAT, add_all
from delayed_queue.spark.pipeline import cli
from delayed_queue.spark.pipeline.bundles import bundle
from delayed_queue.spark.pipeline.cli import DONE, FAILED, asked_name
from delayed_queue.spark.pipeline.console import Console, aligned, sentence_of


def _format_of(text: str) -> str:
    """Return the help of --format."""
    return " ".join(text.rpartition("--format")[2].split("--verbose")[0].split())


class TestCommandLine:
    def test_wrong_arguments_answer_1(self, capsys: pytest.CaptureFixture[str]) -> None:
        for arguments in (
            ["nothing"],
            ["import"],
            ["import", "x.csv", "--over", "long"],
            ["import", "x.csv", "--master", "moon"],
        ):
            with pytest.raises(SystemExit) as ended:
                cli.main(arguments)
            assert ended.value.code == FAILED
        said = capsys.readouterr().err
        assert "not a duration" in said
        assert "'moon' is not local[…]" in said

    def test_a_queue_may_be_written_as_its_kind(self) -> None:
        parse = cli.build_parser().parse_args
        for name, found in (("orders", "orders"), ("orders|json", "orders"), ("a|b|json", "a|b")):
            assert asked_name(parse(["import", "x.csv", "--queue", name])) == found
        assert asked_name(parse(["import", "x.csv"])) is None

    def test_an_import_of_which_more_than_one_in_twenty_is_bad_fails_unless_it_may(self) -> None:
        assert cli.build_parser().parse_args(["import", "x.csv"]).max_bad_ratio == 0.05

    def test_delimiters(self, capsys: pytest.CaptureFixture[str]) -> None:
        parse = cli.build_parser().parse_args
        for text, found in ((";", ";"), ("\\t", "\t"), ("\t", "\t")):
            assert parse(["import", "x.csv", "--delimiter", text]).delimiter == found
        for wrong in ("", "ab", '"'):
            with pytest.raises(SystemExit):
                parse(["import", "x.csv", "--delimiter", wrong])
        assert "not one character" in capsys.readouterr().err

    def test_what_can_be_refused_is_refused_before_spark_starts(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        wrong = [
            ["import", "x.csv", "--queue", "q", "--over", "1h", "--rate", "5"],
            ["import", "x.csv", "--queue", "q", "--map", "a=b"],
            ["drain", "--queue", "q"],
            ["drain", "--queue", "q", "--handler", "a:b"],
            ["archive", "notes", "--older-than", "1d", "--to", "x"],
            ["import", "x.csv", "--queue", "q", "--id", ".."],
            ["import", "x.csv", "--queue", "q|text"],
            ["replay", "lake", "--id", "a/b"],
            ["drain", "--queue", "q", "--handler", "a:b", "--checkpoint", "c", "--lease", "long"],
        ]
        for arguments in wrong:
            assert cli.main(arguments) == FAILED
            said = capsys.readouterr().err.splitlines()[-1]
            assert said.startswith(f"python -m delayed_queue.spark {arguments[0]}: ")

    def test_bundle_and_main_are_files(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["bundle"]) == DONE
        path = capsys.readouterr().out.strip()
        assert path == str(bundle())
        with zipfile.ZipFile(path) as packed:
            names = set(packed.namelist())
        wanted = {"spark/pipeline/cli.py", "queue/store/claim.py"}
        assert {f"delayed_queue/{each}" for each in wanted} <= names
        assert not any("/admin/" in name or "__pycache__" in name for name in names)
        assert cli.main(["main", "--format", "json"]) == DONE
        assert Path(json.loads(capsys.readouterr().out)["path"]).is_file()

    def test_each_answers_in_the_formats_of_all_other_commands(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        wanted = ArgumentParser()
        add_all(wanted, FORMAT)
        said = _format_of(wanted.format_help())
        for name in cli.COMMANDS:
            with pytest.raises(SystemExit):
                cli.main([name, "--help"])
            assert _format_of(capsys.readouterr().out) == said

    def test_tables_are_aligned(self) -> None:
        rows = [("a", 1000, None), ("bcd", 5, 1.25)]
        assert aligned(rows) == ["a    1,000    -", "bcd      5  1.2"]

    def test_answers(self) -> None:
        out, err = io.StringIO(), io.StringIO()
        console = Console(as_json=True, out=out, err=err)
        console.progress("working")
        console.answer({"a": 1}, ["words"])
        assert json.loads(out.getvalue()) == {"a": 1}
        assert "working" in err.getvalue()


class TestErrors:
    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("[PATH_NOT_FOUND] Path does not exist: x.\n\tat org", "Path does not exist: x."),
            (
                "[E] failed\nTraceback (most recent call last):\n  File\n"
                "delayed_queue.exceptions.ResourceUnavailable: The read failed: gone\n\nJVM",
                "The read failed: gone",
            ),
            ("x\nTraceback (most recent call last):\n  File\nKeyError: 'a'\n", "KeyError: 'a'"),
            (
                "An error occurred while calling o1.x.\n: java.io.IOException: no space\n\tat",
                "IOException: no space",
            ),
            ("", "RuntimeError"),
        ],
    )
    def test_pages_become_a_sentence(self, text: str, sentence: str) -> None:
        assert sentence_of(RuntimeError(text)) == sentence
