"""The arithmetic of the pipeline: without a JVM and without a database."""

from __future__ import annotations

import io
import json
import os
import stat
import tempfile
import zipfile
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage, ResourceUnavailable
from delayed_queue.messages import MAX_MILLISECONDS
from delayed_queue.spark import cli, commands, doctor
from delayed_queue.spark.bundle import bundle
from delayed_queue.spark.errors import sentence_of
from delayed_queue.spark.jobs import events, plots
from delayed_queue.spark.jobs.archives import bites, ranges_of
from delayed_queue.spark.jobs.console import Console, aligned, span
from delayed_queue.spark.jobs.counts import Counts
from delayed_queue.spark.jobs.files import FileDigest, digest_of
from delayed_queue.spark.jobs.inputs import Block, check_columns, format_of, numbered
from delayed_queue.spark.jobs.loading import load
from delayed_queue.spark.jobs.manifests import is_dead, new_holder
from delayed_queue.spark.jobs.records import (
    Checked,
    Checker,
    Rules,
    is_deeper,
    parse_mapping,
    plain,
)
from delayed_queue.spark.jobs.spreading import Spread
from delayed_queue.spark.jobs.tables import named, parse_only
from delayed_queue.spark.private import private_directory
from delayed_queue.spark.settings import SparkSettings
from delayed_queue.spark.starting import conf_of, master_of

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
JSON_TEXTS = Rules("orders", are_texts_json=True)


def checked(record: dict[str, Any], rules: Rules = JSON_TEXTS) -> Checked:
    return Checker(rules).check(record)


def reasons(record: dict[str, Any], rules: Rules = JSON_TEXTS) -> str:
    found = checked(record, rules)
    assert found.payload is None
    return " ".join(found.reasons)


class TestRecords:
    def test_a_record_is_a_message_as_a_queue_would_store_it(self) -> None:
        found = checked(
            {"key": "a", "payload": '{"b": 1, "a": 2}', "schedule_at": AT.isoformat(),
             "headers": '{"h": "1"}'}
        )  # fmt: skip
        assert found.kind == "orders|json"
        assert found.payload == b'{"a":2,"b":1}'
        assert found.schedule_ms == int(AT.timestamp() * 1000)
        assert json.loads(found.headers or "") == {"h": "1"}
        assert found.reasons == ()

    def test_columns_that_are_mapped_to_nothing_are_the_payload(self) -> None:
        rules = Rules("orders", mapping={"id": "key"})
        found = checked({"id": 7, "amount": Decimal("1.50"), "on": date(2026, 1, 2)}, rules)
        assert found.key == "7"
        assert found.payload == b'{"amount":"1.50","on":"2026-01-02"}'

    @pytest.mark.parametrize(
        ("record", "said"),
        [
            ({}, "It has no key."),
            ({"key": "", "payload": "1"}, "1 to 200 characters; this one has 0"),
            ({"key": "x" * 201, "payload": "1"}, "this one has 201"),
            ({"key": "a\x00", "payload": "1"}, "NUL"),
            ({"key": "\ud800", "payload": "1"}, "not valid Unicode"),
            ({"key": "a", "payload": "{"}, "The payload is not JSON (character 2)."),
            ({"key": "a", "payload": "NaN"}, "not JSON"),
            ({"key": "a", "payload": b"\xff"}, "not JSON"),
            ({"key": "a", "payload": "[" * 100_000}, "not JSON"),
            ({"key": "a", "payload": "[" * 33 + "]" * 33}, "nested deeper than 32"),
            ({"key": "a", "payload": '"' + "x" * 262_143 + '"'}, "262,145 bytes"),
            ({"key": "a", "payload": "1", "schedule_at": "soon"}, "'soon' is no instant"),
            ({"key": "a", "payload": "1", "schedule_at": "2026-01-01T00:00"}, "no time zone"),
            ({"key": "a", "payload": "1", "schedule_at": 10**17}, "outside the years"),
            ({"key": "a", "payload": "1", "delay": "a while"}, "neither seconds nor a duration"),
            ({"key": "a", "payload": "1", "delay": 1e300}, "neither seconds nor a duration"),
            ({"key": "a", "payload": "1", "delay": True}, "neither seconds nor a duration"),
            ({"key": "a", "payload": "1", "delay": 5, "schedule_at": 5}, "both"),
            ({"key": "a", "payload": "1", "headers": "[]"}, "headers must map"),
            ({"key": "a", "payload": "1", "headers": "x"}, "headers is not JSON"),
            ({"key": "a", "payload": "1", "queue": "q" * 100}, "105 characters"),
            ({"key": "a", "payload": "1", "queue": 7}, "a text, not int"),
        ],
    )  # fmt: skip
    def test_what_is_wrong_is_said(self, record: dict[str, Any], said: str) -> None:
        assert said in reasons(record)

    def test_everything_that_is_wrong_is_said(self) -> None:
        found = checked({"key": "", "payload": "{", "schedule_at": "x"})
        assert len(found.reasons) == 3

    def test_the_payload_is_not_in_the_reason(self) -> None:
        assert "secret" not in reasons({"key": "a", "payload": "{secret"})

    def test_without_a_queue_the_record_must_name_one(self) -> None:
        rules = Rules(None, are_texts_json=True)
        assert checked({"key": "a", "payload": "1", "queue": "b"}, rules).kind == "b|json"
        assert "names no queue" in reasons({"key": "a", "payload": "1"}, rules)

    @pytest.mark.parametrize(
        ("value", "milliseconds"), [("1.5", 1500), (2, 2000), ("15m", 900_000), ("", None)]
    )
    def test_delays(self, value: Any, milliseconds: int | None) -> None:
        found = checked({"key": "a", "payload": "1", "delay": value})
        assert found.delay_ms == milliseconds

    @pytest.mark.parametrize(("codec", "value"), [("text", "words"), ("bytes", b"\x00\xff")])
    def test_other_codecs(self, codec: str, value: Any) -> None:
        found = checked({"key": "a", "payload": value}, Rules("orders", codec))
        data = value.encode() if isinstance(value, str) else value
        assert (found.kind, found.payload) == (f"orders|{codec}", data)

    def test_other_codecs_need_a_payload(self) -> None:
        assert "It has no payload." in reasons({"key": "a"}, Rules("orders", "text"))

    def test_texts_of_json_lines_are_values(self) -> None:
        assert checked({"key": "a", "payload": "1"}, Rules("orders")).payload == b'"1"'
        assert checked({"key": "a", "payload": None}, Rules("orders")).payload == b"null"

    def test_a_targets_own_check_is_asked_about_good_records(self) -> None:
        seen: list[dict[str, Any]] = []
        checker = Checker(JSON_TEXTS, lambda row: seen.append(row) or ["no"])  # type: ignore[func-returns-value]
        assert checker.check({"key": "a", "payload": '{"x": 1}'}).reasons == ("no",)
        assert checker.check({"key": "", "payload": '{"x": 1}'}).reasons != ("no",)
        (row,) = seen
        assert row["payload"] == {"x": 1}
        assert row["queue"] == "orders"

    @given(
        st.recursive(
            st.none(), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(
                st.just("k"), inner
            ), max_leaves=20
        ), st.integers(0, 6),
    )  # fmt: skip
    def test_depth_is_that_of_a_recursive_count(self, value: Any, most: int) -> None:
        def depth(each: Any) -> int:
            inner = each.values() if isinstance(each, dict) else each
            return 0 if each is None else 1 + max((depth(one) for one in inner), default=0)

        assert is_deeper(value, most) == (depth(value) > most)

    def test_plain_leaves_json_alone(self) -> None:
        value = {"a": [1, 2.5, None, True, {"b": "c"}]}
        assert plain(value) == value


class TestMapping:
    def test_columns_by_field(self) -> None:
        assert parse_mapping(["id=key", "a=b=payload"]) == {"id": "key", "a=b": "payload"}

    @pytest.mark.parametrize("pair", ["id", "=key", "id=kee", "x=key,x"])
    def test_wrong_pairs(self, pair: str) -> None:
        with pytest.raises(InvalidConfiguration):
            parse_mapping([pair])

    def test_twice(self) -> None:
        with pytest.raises(InvalidConfiguration, match="twice"):
            parse_mapping(["a=key", "b=key"])

    def test_of_events(self) -> None:
        assert events.parse_mapping(["ended=finished_at"]) == {"finished_at": "ended"}
        with pytest.raises(InvalidConfiguration, match="fields are kind"):
            events.parse_mapping(["ended=end"])

    def test_a_missing_column_is_named_with_those_there_are(self) -> None:
        with pytest.raises(InvalidConfiguration, match="no column 'id'; it has a, b"):
            check_columns(["a", "b"], Rules("orders", mapping={"id": "key"}))
        with pytest.raises(InvalidConfiguration, match="no column 'key'"):
            check_columns(["a", "b"], Rules("orders"))


class TestInputs:
    @pytest.mark.parametrize(
        ("paths", "found"),
        [(["a.csv", "b.CSV.gz"], "csv"), (["x/*.jsonl"], "jsonl"), (["lake.parquet/"], "parquet")],
    )
    def test_formats_by_name(self, paths: list[str], found: str) -> None:
        assert format_of(paths, None) == found

    @pytest.mark.parametrize("paths", [["a.csv", "b.jsonl"], ["directory"]])
    def test_names_that_do_not_say(self, paths: list[str]) -> None:
        with pytest.raises(InvalidConfiguration, match="--input-format"):
            format_of(paths, None)
        assert format_of(paths, "csv") == "csv"

    def test_lines_and_ordinals_are_sums_of_the_blocks_before(self) -> None:
        blocks = [
            Block("b", 0, 5, 5, 0), Block("a", 64, 7, 6, 1), Block("a", 0, 10, 10, 0),
        ]  # fmt: skip
        assert [
            (each.file, each.block, each.first_line, each.first_ordinal)
            for each in numbered(blocks)
        ] == [("a", 0, 0, 0), ("a", 64, 10, 10), ("b", 0, 0, 17)]

    def test_what_cannot_be_loaded_is_named(self) -> None:
        assert load("json:JSONEncoder.encode") is json.JSONEncoder.encode
        for path in ("json:nothing", "nowhere.at.all:x", "json"):
            with pytest.raises(InvalidConfiguration, match="cannot be loaded"):
                load(path)


class TestSpread:
    def test_nothing_said_is_nothing(self) -> None:
        assert Spread.of() is None

    @given(st.integers(1, 10_000), st.integers(1, 10**9))
    def test_over_a_time_all_fall_inside_it_in_order(self, total: int, over: int) -> None:
        spread = Spread(over_ms=over)
        times = [spread.after(each, total) for each in range(total)]
        assert times == sorted(times)
        assert times[0] == 0
        assert times[-1] < over

    @given(st.integers(1, 3000), st.floats(0.1, 1000))
    def test_no_second_gets_more_than_the_rate(self, total: int, rate: float) -> None:
        spread = Spread.of(per_second=rate)
        assert spread is not None
        seconds: dict[int, int] = {}
        for each in range(total):
            second = spread.after(each, total) // 1000
            seconds[second] = seconds.get(second, 0) + 1
        assert max(seconds.values()) <= int(rate) + 1

    @pytest.mark.parametrize("rate", [0, -1, 2_000_000, float("nan")])
    def test_rates_that_are_none(self, rate: float) -> None:
        with pytest.raises(InvalidConfiguration, match="--rate"):
            Spread.of(per_second=rate)

    def test_both(self) -> None:
        with pytest.raises(InvalidConfiguration, match="one of them"):
            Spread.of(over=timedelta(hours=1), per_second=1)

    def test_beyond_the_calendar(self) -> None:
        with pytest.raises(InvalidConfiguration, match="9999"):
            Spread(MAX_MILLISECONDS, over_ms=1000).step(10)

    def test_a_start_needs_a_zone(self) -> None:
        with pytest.raises(InvalidMessage, match="time zone"):
            Spread.of(datetime(2026, 1, 1))  # noqa: DTZ001 - what is refused


class TestArchives:
    @given(st.lists(st.integers(0, 1000), unique=True, min_size=1), st.integers(1, 10))
    def test_pieces_hold_every_key_once(self, keys: list[int], piece: int) -> None:
        keys.sort()
        starts = keys[::piece]
        bounds = starts if starts[-1] == keys[-1] else [*starts, keys[-1]]
        found = [
            key
            for lower, upper, is_last in ranges_of([str(each) for each in bounds])
            for key in keys
            if int(lower) <= key and (key < int(upper) or (is_last and key == int(upper)))
        ]
        assert found == keys

    def test_no_bounds_no_pieces(self) -> None:
        assert ranges_of([]) == []

    def test_bites(self) -> None:
        assert list(bites(iter(range(5)), 2)) == [[0, 1], [2, 3], [4]]

    def test_the_checksum_changes_with_any_file(self) -> None:
        files = [FileDigest("a", 1, "x"), FileDigest("b", 2, "y")]
        assert digest_of(files) == digest_of(files[::-1])
        assert digest_of(files) != digest_of(files[:1])
        assert digest_of(files) != digest_of([files[0], FileDigest("b", 2, "z")])

    def test_holders(self) -> None:
        assert is_dead(new_holder())  # an earlier run of this very process
        assert not is_dead(f"elsewhere:{os.getpid()}:x")
        host = new_holder().partition(":")[0]
        assert not is_dead(f"{host}:1:x")
        assert is_dead(f"{host}:{2**22 + 1}:x")
        assert not is_dead("")

    def test_tables_by_name(self) -> None:
        assert named("dead-letters", None, None, {}).age == "diedAt"
        assert named("notes", "uuid", "ended_at", {}).key == "uuid"
        with pytest.raises(InvalidConfiguration, match="--age"):
            named("notes", None, None, {})

    def test_only(self) -> None:
        assert parse_only(["status=sent,failed"]) == {"status": ["sent", "failed"]}
        assert parse_only(["a=1", "a=2", "b=3"]) == {"a": ["1", "2"], "b": ["3"]}
        for wrong in ("status", "status=", "=x"):
            with pytest.raises(InvalidConfiguration, match="--only"):
                parse_only([wrong])


class TestReports:
    @pytest.mark.parametrize(
        ("seconds", "words"),
        [(0, "0 ms"), (0.25, "250 ms"), (1.5, "1.50 s"), (90, "1.5 min"), (7200, "2.0 h"),
         (172_800, "2.0 d"), (-0.5, "-500 ms")],
    )  # fmt: skip
    def test_time_spans(self, seconds: float, words: str) -> None:
        assert span(seconds) == words

    def test_plots_are_pictures_and_empty_figures_have_none(self) -> None:
        empty = {"created_at": AT.isoformat(), "kinds": [], "throughput": [], "reasons": [],
                 "backlog": []}  # fmt: skip
        assert plots.draw(empty) == {}
        share = {"p50": 0.1, "p90": 1, "p95": 2, "p99": 300, "max": 400}
        figures = {
            **empty,
            "kinds": [{"kind": f"k{each}|json", "lateness_seconds": share} for each in range(9)],
            "throughput": [
                {"kind": f"k{each}|json", "minute": AT.isoformat(), "messages": each + 1}
                for each in range(9)
            ],
            "reasons": [{"kind": "k|json", "reason": "x" * 100, "messages": 3}],
            "backlog": [
                {"kind": f"k{each}|json", "due": 1, "hours": [2] * 24, "later": 3}
                for each in range(9)
            ],
        }
        found = plots.draw(figures)
        assert set(found) == {"lateness", "throughput", "backlog", "reasons"}
        assert all(data.startswith(b"\x89PNG") for data in found.values())

    def test_what_is_left_over_is_one_line(self) -> None:
        rows = [{"kind": f"k{each}", "due": each, "hours": [1], "later": 0} for each in range(10)]
        stacks = dict(plots._stacks(rows, plots._largest({f"k{n}": n for n in range(10)})))
        assert stacks[plots.OTHERS] == [0 + 1 + 2, 3, 0]
        assert len(stacks) == plots.MOST_KINDS + 1


class TestSettings:
    def test_what_is_right(self) -> None:
        settings = SparkSettings.of({"MASTER": "yarn", "EXECUTORS": 4, "CORES": 2, "MEMORY": "2g"})
        assert SparkSettings.of(settings) is settings

    @pytest.mark.parametrize(
        ("configured", "said"),
        [
            ({"MASTR": "yarn"}, "Did you mean 'MASTER'"),
            ({"MASTER": "moon"}, "MASTER"),
            ({"CORES": 0}, "CORES"),
            ({"MEMORY": "lots"}, "MEMORY"),
            ({"MAX_CONNECTIONS": None}, "MAX_CONNECTIONS"),
            ({"CONF": {"a": 1}}, "CONF"),
            ([], "must be a dict"),
        ],
    )
    def test_what_is_wrong(self, configured: Any, said: str) -> None:
        with pytest.raises(InvalidConfiguration, match=said):
            SparkSettings.of(configured)

    def test_this_machine_takes_no_more_cores_than_connections(self) -> None:
        assert master_of(SparkSettings(CORES=8, MAX_CONNECTIONS=3)) == "local[3,4]"
        assert master_of(SparkSettings(MASTER="spark://a:7077")) == "spark://a:7077"

    def test_a_cluster_is_held_to_the_cap(self) -> None:
        settings = SparkSettings(EXECUTORS=4, CORES=2, MEMORY="1g", CONF={"spark.x": "y"})
        conf = conf_of(settings, "spark://a:7077", is_verbose=True)
        assert conf["spark.cores.max"] == "8"
        assert conf["spark.executor.memory"] == "1g"
        assert conf["spark.x"] == "y"
        with pytest.raises(InvalidConfiguration, match="40 connections"):
            conf_of(SparkSettings(EXECUTORS=20, CORES=2), "yarn")


class TestWhereFilesAreKept:
    """What Java and executors run must not be anybody's on the machine."""

    @pytest.fixture
    def temporary(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        return tmp_path

    def test_in_a_directory_of_this_user_alone(self, temporary: Path) -> None:
        found = private_directory()
        assert found == private_directory()
        assert found.parent == temporary
        assert stat.S_IMODE(found.stat().st_mode) == 0o700
        assert bundle().parent == found
        quiet = conf_of(SparkSettings(), "local[1,4]")["spark.driver.extraJavaOptions"]
        assert f"={found}/" in quiet

    def test_one_that_others_can_write_to_is_refused(self, temporary: Path) -> None:
        found = private_directory()
        found.chmod(0o777)
        with pytest.raises(ResourceUnavailable, match="can be written to by other users"):
            bundle()
        found.rmdir()
        (temporary / "theirs").mkdir()
        found.symlink_to(temporary / "theirs")
        with pytest.raises(ResourceUnavailable):
            conf_of(SparkSettings(), "local[1,4]")


class TestCommandLine:
    def test_wrong_arguments_answer_1(self, capsys: pytest.CaptureFixture[str]) -> None:
        for arguments in (["nothing"], ["import"], ["import", "x.csv", "--over", "long"]):
            with pytest.raises(SystemExit) as ended:
                cli.main(arguments)
            assert ended.value.code == cli.FAILED
        assert "not a duration" in capsys.readouterr().err

    def test_a_queue_may_be_written_as_its_kind(self) -> None:
        parse = cli.build_parser().parse_args
        for name, found in (("orders", "orders"), ("orders|json", "orders"), ("a|b|json", "a|b")):
            assert commands._name(parse(["import", "x.csv", "--queue", name])) == found
        assert commands._name(parse(["import", "x.csv"])) is None

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
            ["import", "x.csv", "--queue", "q", "--executors", "90", "--master", "yarn"],
        ]
        for arguments in wrong:
            assert cli.main(arguments) == cli.FAILED
            said = capsys.readouterr().err.splitlines()[-1]
            assert said.startswith(f"python -m delayed_queue.spark {arguments[0]}: ")

    def test_bundle_and_main_are_files(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["bundle"]) == cli.DONE
        path = capsys.readouterr().out.strip()
        assert path == str(bundle())
        with zipfile.ZipFile(path) as packed:
            names = set(packed.namelist())
        assert {"delayed_queue/spark/cli.py", "delayed_queue/sql/leasing.py"} <= names
        assert not any("/admin/" in name or "__pycache__" in name for name in names)
        assert cli.main(["main", "--format", "json"]) == cli.DONE
        assert Path(json.loads(capsys.readouterr().out)["path"]).is_file()

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

    def test_counts_add_up(self) -> None:
        assert (Counts(1, 2, 3) + Counts(4)).total == 10


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
            (
                "x\nTraceback (most recent call last):\n  File\nKeyError: 'a'\n",
                "KeyError: 'a'",
            ),
            (
                "An error occurred while calling o1.x.\n: java.io.IOException: no space\n\tat",
                "IOException: no space",
            ),
            ("", "RuntimeError"),
        ],
    )
    def test_pages_become_a_sentence(self, text: str, sentence: str) -> None:
        assert sentence_of(RuntimeError(text)) == sentence


class TestDoctor:
    @pytest.mark.parametrize(
        ("text", "release"),
        [('openjdk version "17.0.15" 2025', 17), ('java version "1.8.0_402"', 8),
         ('openjdk version "25" 2025', 25), ('openjdk version "21-ea"', 21), ("moo", 0)],
    )  # fmt: skip
    def test_releases_of_java(self, text: str, release: int) -> None:
        assert doctor.java_release(text) == release

    def test_java_that_does_not_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text("#!/bin/sh\necho 'java version \"1.8.0\"' >&2\n")
        java.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        assert doctor.java().level == doctor.FAIL
        java.write_text("#!/bin/sh\nexit 1\n")
        assert "CalledProcessError" in doctor.java().found

    def test_packages_of_wrong_versions(self) -> None:
        assert doctor._package("pyspark", (99, 0), None).advice == "pip install 'pyspark>=99.0'"
        assert doctor._package("no-such-thing", (1, 0), None).found == "not installed"
        assert {each.level for each in doctor.packages()} == {doctor.OK}

    def test_executors_that_differ(self) -> None:
        here = {**doctor.look_here(), "host": "a", "database": None}
        assert [each.level for each in doctor.executors([here])] == [doctor.OK]
        other = {**here, "host": "b", "python": "3.9.1", "pyarrow": None, "database": "refused"}
        found = list(doctor.executors([here, other]))
        assert [each.level for each in found] == [doctor.FAIL] * 3
        assert "b cannot reach the database: refused" in found[-1].found

    def test_the_sum_of_connections(self) -> None:
        settings = SparkSettings(MAX_CONNECTIONS=10)
        assert doctor.connections(4, settings, (100, 20)).level == doctor.OK
        assert doctor.connections(40, settings, (100, 20)).level == doctor.WARN
        found = doctor.connections(40, settings, (50, 20))
        assert (found.level, found.found) == (doctor.FAIL, "43 of a command, 20 in use, 50 in all")

    def test_without_a_database_it_says_so_and_starts_nothing(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("DELAYED_QUEUE_DSN", "host=127.0.0.1 port=1 dbname=x password=geheim")
        assert cli.main(["doctor"]) == cli.FAILED
        told = capsys.readouterr()
        assert "fail  database" in told.out
        assert "starting Spark" not in told.err
        assert "geheim" not in told.out + told.err
