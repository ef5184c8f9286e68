"""Options: accepted, refused and hidden values (P5)."""

from __future__ import annotations

import pickle
from dataclasses import fields

import pyarrow as pa
import pytest

from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage, ResourceUnavailable
from delayed_queue.spark.database import dsn_from_django, resolve_dsn
from delayed_queue.spark.settings import VARIABLE
from delayed_queue.spark.source.large import read_large
from delayed_queue.spark.source.options import Options, parse_options

SECRET = "hunter2-s3cret"  # the tests search all output for it


def function_with_secret() -> str:
    return f"dbname=x password={SECRET}"


class TestParsing:
    def test_a_queue_is_its_kind(self):
        assert parse_options({"queue": "orders"}).kind == "orders|json"
        assert parse_options({"queue": "orders", "codec": "text"}).kind == "orders|text"
        assert parse_options({"kind": "x"}).kind == "x"

    def test_spark_gives_names_in_lower_case(self):
        given = parse_options({"maxmessagespertrigger": "5", "LEASE": "90s", "allQueues": "True"})
        assert (given.maxMessagesPerTrigger, given.lease, given.allQueues) == (5, 90_000, True)

    def test_what_spark_adds_is_passed_over(self):
        assert parse_options({"path": "x", "checkpointLocation": "y"}) == Options()

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"queu": "orders"}, "no option 'queu': did you mean 'queue'"),
            ({"maxMessages": "5"}, "did you mean 'maxMessagesPerTrigger'"),
            ({"zzz": "5"}, "there are allQueues, atomic, batch, chunk, "),
            ({"chunk": "0"}, "chunk is '0': it must be a whole number from 1"),
            ({"chunk": "²"}, "chunk is '²'"),
            ({"batch": "0"}, "batch is '0': it must be a whole number from 1"),
            ({"atomic": "yes"}, "atomic is 'yes': it must be true or false"),
            ({"mode": "append"}, "mode is 'append': it must be one of offer, upsert"),
            ({"lease": "10 minutes"}, "a duration from 1ms to"),
            ({"lease": "0s"}, "a duration from 1ms"),
            ({"job": ""}, "job is '': it must be 1 to 200 characters"),
            ({"dsnFunction": "os"}, "must be a function, as in"),
            ({"queue": "a", "kind": "b"}, "not both"),
            ({"dsn": "nonsense here"}, "no connection string"),
            ({"asyncProgressTrackingEnabled": "true"}, "acknowledged before"),
        ],
    )
    def test_what_cannot_be_is_refused(self, given: dict[str, str], said: str):
        with pytest.raises(InvalidConfiguration, match=None) as caught:
            parse_options(given)
        assert said in str(caught.value)

    @pytest.mark.parametrize("name", ["", "x" * 101, "a\x00b"])
    def test_names_that_no_queue_can_have(self, name: str):
        with pytest.raises(InvalidMessage):
            parse_options({"kind": name})

    def test_a_queue_must_be_named_where_there_must_be_one(self):
        with pytest.raises(InvalidConfiguration, match="Name the queue"):
            _ = parse_options({}).required_kind


class TestPasswords:
    @pytest.mark.parametrize(
        ("dsn", "name"),
        [
            (f"postgresql://me:{SECRET}@host/db", "password"),
            (f"dbname=x password={SECRET}", "password"),
            (f"dbname=x sslpassword={SECRET}", "sslpassword"),
            (f"postgresql://host/db?oauth_client_secret={SECRET}", "oauth_client_secret"),
            (f"dbname=x scram_client_key={SECRET}", "scram_client_key"),
        ],
    )
    def test_an_option_must_not_hold_one(self, dsn: str, name: str):
        """If libpq lacks the parameter, the text is no connection string."""
        said = rf"must not hold {name}\b|no connection string of libpq"
        with pytest.raises(InvalidConfiguration, match=said) as caught:
            parse_options({"dsn": dsn})
        assert SECRET not in str(caught.value)

    def test_what_is_no_connection_string_is_not_repeated(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv(VARIABLE, f"postgresql://me:%zz{SECRET}@host/db")
        with pytest.raises(InvalidConfiguration) as caught:
            resolve_dsn(Options())
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None

    @pytest.mark.parametrize("driver", ["adbc", "psycopg"])
    def test_an_unreachable_database_is_named_without_it(
        self, monkeypatch: pytest.MonkeyPatch, driver: str
    ):
        monkeypatch.setenv(VARIABLE, f"postgresql://me:{SECRET}@127.0.0.1:1/sales")
        options = parse_options({"driver": driver})
        with pytest.raises(ResourceUnavailable, match=r"'sales' at 127\.0\.0\.1:1") as caught:
            list(read_large(options, [], "SELECT 1", pa.schema([])))
        assert SECRET not in str(caught.value)

    def test_options_take_none_into_a_pickle(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv(VARIABLE, f"dbname=x password={SECRET}")
        path = f"{__name__}:function_with_secret"
        given = parse_options({"queue": "orders", "dsnFunction": path})
        assert SECRET in resolve_dsn(given)
        assert SECRET.encode() not in pickle.dumps(given)


class TestWhere:
    def test_the_order_is_option_function_environment(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv(VARIABLE, "dbname=environment")
        path = f"{__name__}:function_with_secret"
        assert resolve_dsn(Options()) == "dbname=environment"
        assert resolve_dsn(parse_options({"dsnFunction": path})) == function_with_secret()
        assert resolve_dsn(parse_options({"dsn": "dbname=o"})) == "dbname=o"

    def test_libpqs_own_variables_are_enough(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.delenv(VARIABLE, raising=False)
        monkeypatch.setenv("PGHOST", "db.example")
        assert resolve_dsn(Options()) == ""

    def test_without_any_it_says_what_to_set(self, monkeypatch: pytest.MonkeyPatch):
        for name in (VARIABLE, "PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE", "PGPORT"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv("PGUSER", raising=False)
        with pytest.raises(InvalidConfiguration, match=f"set {VARIABLE}"):
            resolve_dsn(Options())

    def test_djangos_settings_become_a_connection_string(self):
        database = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "sales",
            "USER": "me",
            "PASSWORD": "it's",
            "HOST": "",
            "PORT": 5433,
            "OPTIONS": {"sslmode": "require", "pool": True},
        }
        dsn = dsn_from_django(database)
        assert dsn == r"dbname=sales user=me password=it\'s port=5433 sslmode=require"


def test_each_option_is_documented():
    """The table of the guide names each option, and no other."""
    import re
    from pathlib import Path

    guide = Path(__file__).parents[3] / "docs/guides/spark.md"
    section = guide.read_text(encoding="utf-8").partition("## Options")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(documented) == sorted({each.name for each in fields(Options)} | {"queue"})


def test_a_read_says_which_queue_or_that_all_are_meant():
    for given in ({"queue": "orders"}, {"kind": "x"}, {"allQueues": "true"}):
        parse_options(given).check_readable()
    with pytest.raises(InvalidConfiguration, match="Name the queue to read"):
        parse_options({"allQueues": "false"}).check_readable()
    with pytest.raises(InvalidConfiguration, match="not both"):
        parse_options({"queue": "orders", "allQueues": "true"})


def test_what_a_catalog_tells_of_a_table_is_no_option():
    told = {"owner": "me", "provider": "delayed_queue", "location": "/x", "option.queue": "other"}
    assert parse_options({**told, "queue": "orders"}).kind == "orders|json"
