"""Codecs and kinds."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayed_queue.codecs import check_kind, codec_named, decode, encode, jvm_kind, kind_of
from delayed_queue.exceptions import (
    InvalidConfiguration,
    InvalidMessage,
    PayloadNotDecodable,
    PayloadNotEncodable,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
).filter(lambda value: "inf" not in repr(value))


class Cents:
    """A codec of a user."""

    name = "cents"

    def encode(self, payload: Any) -> bytes:
        return f"{payload:d}".encode()

    def decode(self, data: bytes) -> Any:
        return int(data)


class TestRoundTrips:
    @given(value=json_values)
    def test_json(self, value: Any):
        codec = codec_named("json")
        assert decode(codec, encode(codec, value)) == value

    @given(value=st.text())
    def test_text(self, value: str):
        codec = codec_named("text")
        assert encode(codec, value) == value.encode()
        assert decode(codec, encode(codec, value)) == value

    @given(value=st.binary())
    def test_bytes(self, value: bytes):
        codec = codec_named("bytes")
        assert decode(codec, encode(codec, value)) == value
        assert encode(codec, bytearray(value)) == encode(codec, memoryview(value)) == value

    def test_a_codec_of_ones_own(self):
        codec = codec_named(Cents())
        assert decode(codec, encode(codec, 250)) == 250
        assert kind_of("prices", codec) == "prices|cents"


def test_q2_equal_json_gives_equal_bytes():
    codec = codec_named("json")
    one = encode(codec, {"b": [1, 2], "a": "ž"})
    assert one == encode(codec, {"a": "ž", "b": [1, 2]}) == '{"a":"ž","b":[1,2]}'.encode()


@pytest.mark.parametrize(
    ("codec", "payload"),
    [
        ("json", math.nan),
        ("json", math.inf),
        ("json", object()),
        ("json", {1: 1, "1": 1}),
        ("json", "\ud800"),
        ("text", b"bytes"),
        ("text", None),
        ("text", "\udfff"),
        ("bytes", "text"),
        ("bytes", 3),
        (Cents(), "much"),
    ],
)
def test_what_does_not_encode(codec: Any, payload: Any):
    with pytest.raises(PayloadNotEncodable, match=f"{codec_named(codec).name} codec"):
        encode(codec_named(codec), payload)


def test_a_structure_without_an_end_does_not_encode():
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(PayloadNotEncodable):
        encode(codec_named("json"), endless)


def test_a_codec_must_return_bytes():
    class Sloppy(Cents):
        def encode(self, payload: Any) -> Any:
            return str(payload)

    with pytest.raises(PayloadNotEncodable, match="str instead of bytes"):
        encode(Sloppy(), 1)


@pytest.mark.parametrize(
    ("codec", "data"),
    [("json", b""), ("json", b"{"), ("json", b"\xff"), ("text", b"\xff"), (Cents(), b"x")],
)
def test_q22_whatever_decoding_raises_is_one_error(codec: Any, data: bytes):
    with pytest.raises(PayloadNotDecodable, match=f"{len(data)} stored bytes") as raised:
        decode(codec_named(codec), data)
    assert raised.value.__cause__ is not None


def test_q22_deep_json_is_one_error():
    with pytest.raises(PayloadNotDecodable):
        decode(codec_named("json"), b"[" * 100_000)


@pytest.mark.parametrize(
    "codec", ["yaml", "", None, 3, object(), type("Nameless", (Cents,), {"name": ""})()]
)
def test_what_is_no_codec(codec: Any):
    with pytest.raises(InvalidConfiguration, match="codec"):
        codec_named(codec)


class TestKinds:
    def test_a_kind_is_the_name_and_the_codec(self):
        assert kind_of("orders", codec_named("json")) == "orders|json"

    def test_q36_the_kind_of_a_jvm_service(self):
        assert jvm_kind("my-queue") == "7ab2b0dfa43e1a1f12169da88468fb53"
        assert jvm_kind("my-queue", "java.lang.String") == jvm_kind("my-queue")
        assert jvm_kind("my-queue", "com.example.Order") != jvm_kind("my-queue")
        assert check_kind(jvm_kind("žluťoučký")) == jvm_kind("žluťoučký")

    @pytest.mark.parametrize("kind", ["", None, 5, "x" * 101, "a\0", "\ud800"])
    def test_no_kind(self, kind: Any):
        with pytest.raises(InvalidMessage):
            check_kind(kind)

    def test_up_to_a_hundred_characters(self):
        assert check_kind("\N{HORSE}" * 100) == "\N{HORSE}" * 100


@pytest.mark.parametrize(
    "stored",
    [
        b'{"a": 1}', b' {"a":1}\n', '{"a":1}'.encode("utf-16"), b'\xef\xbb\xbf{"a":1}',
        b'{"a":2,"a":1}',
    ],
    ids=["spaced", "white space around", "UTF-16", "byte order mark", "key twice"],
)  # fmt: skip
def test_json_of_other_writers_decodes(stored: bytes) -> None:
    assert decode(codec_named("json"), stored) == {"a": 1}


@pytest.mark.parametrize("stored", [b'{"a":1} x', b'{"a":1}{}', b"\xff{}", b""])
def test_json_with_something_behind_does_not_decode(stored: bytes) -> None:
    with pytest.raises(PayloadNotDecodable):
        decode(codec_named("json"), stored)
