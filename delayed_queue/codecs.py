"""Codecs, which turn payloads into bytes, and the kinds under which queues are stored."""

from __future__ import annotations

import json
from hashlib import md5
from typing import Any, Final, Protocol, runtime_checkable

from delayed_queue.exceptions import (
    InvalidConfiguration,
    InvalidMessage,
    PayloadNotDecodable,
    PayloadNotEncodable,
)
from delayed_queue.messages import check_text

MAX_KIND_LENGTH: Final = 100
_CHANNEL_PREFIX: Final = "delayed_queue_"


@runtime_checkable
class Codec(Protocol):
    """Anything with a name, ``encode`` and ``decode`` can be a queue's codec."""

    name: str

    def encode(self, payload: Any) -> bytes: ...

    def decode(self, data: bytes) -> Any: ...


class JsonCodec:
    """Store JSON in its canonical form: equal values give equal bytes."""

    name = "json"

    def encode(self, payload: Any) -> bytes:
        return _ENCODER.encode(payload).encode("utf-8")

    def decode(self, data: bytes) -> Any:
        # Five times faster than loads() for canonical JSON. Other forms (white space, UTF-16, a
        # byte order mark) fall back to loads().
        try:
            text = str(data, "utf-8")
            value, end = _scan_json(text, 0)
        except (ValueError, StopIteration):
            return json.loads(data)
        return value if end == len(text) else json.loads(data)


class TextCodec:
    """Store a str as UTF-8."""

    name = "text"

    def encode(self, payload: Any) -> bytes:
        if not isinstance(payload, str):
            raise TypeError(f"expected str, got {type(payload).__name__}")
        return payload.encode("utf-8")

    def decode(self, data: bytes) -> Any:
        return data.decode("utf-8")


class BytesCodec:
    """Store bytes as they are."""

    name = "bytes"

    def encode(self, payload: Any) -> bytes:
        if not isinstance(payload, _BYTES):
            raise TypeError(f"expected bytes, got {type(payload).__name__}")
        return bytes(payload)

    def decode(self, data: bytes) -> Any:
        return data


# Made once: `X | Y` makes a new object per call.
_BYTES: Final = (bytes, bytearray, memoryview)
# Sorted keys, because a re-offer is recognised by its bytes (Q2): {"a": 1, "b": 2} written in
# another order must stay IGNORED. NaN is refused: no other JSON reader accepts it.
_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
)
# The scanner behind raw_decode(), called directly because it is faster.
_scan_json: Final = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_CODECS: Final[dict[str, Codec]] = {
    codec.name: codec for codec in (JsonCodec(), TextCodec(), BytesCodec())
}


def codec_named(codec: str | Codec) -> Codec:
    """Return the built-in codec of that name, or the given codec object itself."""
    if isinstance(codec, str):
        if codec not in _CODECS:
            raise InvalidConfiguration(
                f"Unknown codec {codec!r}: use one of {sorted(_CODECS)} or an object with "
                "name, encode and decode."
            )
        return _CODECS[codec]
    if not isinstance(codec, Codec) or not isinstance(codec.name, str) or not codec.name:
        raise InvalidConfiguration(
            f"{codec!r} is not a codec: it needs a name, encode(payload) and decode(data)."
        )
    return codec


def encode(codec: Codec, payload: Any) -> bytes:
    """Encode with the codec; its errors become PayloadNotEncodable."""
    try:
        data = codec.encode(payload)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PayloadNotEncodable(
            f"The {codec.name} codec cannot encode this {type(payload).__name__}: {error}"
        ) from error
    if not isinstance(data, bytes):
        raise PayloadNotEncodable(
            f"The {codec.name} codec returned {type(data).__name__} instead of bytes."
        )
    return data


def decode(codec: Codec, data: bytes) -> Any:
    """Decode with the codec; its errors become PayloadNotDecodable."""
    try:
        return codec.decode(data)
    # A codec is foreign code, and any writer may have stored the bytes. Every error must end as a
    # dead letter, or one row would block its queue forever (Q22).
    except Exception as error:
        raise PayloadNotDecodable(
            f"The {codec.name} codec cannot decode {len(data)} stored bytes: "
            f"{type(error).__name__}: {error}"
        ) from error


def kind_of(name: str, codec: Codec) -> str:
    """Return the stored partition value of a queue, ``name|codec``."""
    return f"{name}|{codec.name}"


def jvm_kind(name: str, type_name: str = "java.lang.String") -> str:
    """Return the kind under which the JVM library of this design stores a queue.

    It is the md5, in lower-case hexadecimal, of the UTF-8 text ``name|type``:
    ``jvm_kind("my-queue")`` is ``7ab2b0dfa43e1a1f12169da88468fb53``. Pass it as ``kind=`` with
    ``codec="text"`` to share a queue with such a service.
    """
    return md5(f"{name}|{type_name}".encode(), usedforsecurity=False).hexdigest()


def channel_of(kind: str) -> str:
    """Return the channel on which a kind is announced; channel names hold 63 bytes, so a hash."""
    return _CHANNEL_PREFIX + md5(kind.encode(), usedforsecurity=False).hexdigest()


def check_kind(kind: str) -> str:
    """Return the kind, or refuse one that the column cannot hold."""
    if not isinstance(kind, str) or not kind:
        raise InvalidMessage("A queue needs a name: a non-empty string.")
    if len(kind) > MAX_KIND_LENGTH:
        raise InvalidMessage(
            f"The kind {kind!r} has {len(kind)} characters; at most {MAX_KIND_LENGTH} fit "
            "(queue name, a bar, codec name). Shorten the queue's name."
        )
    return check_text("kind", kind)
