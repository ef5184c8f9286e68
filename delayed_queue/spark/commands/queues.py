"""What commands say of queues: a name and a codec, or both as a kind."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from delayed_queue.codecs import check_kind, codec_named, kind_of
from delayed_queue.exceptions import InvalidConfiguration

CODECS: Final = ("json", "text", "bytes")
MODES: Final = ("offer", "upsert")


def asked_kind(options: Namespace) -> str:
    """Return the kind of --queue: a name and the codec's, or a kind as it is written.

    Raises what ``check_kind`` raises.
    """
    name = str(options.queue)
    if "|" in name:
        return check_kind(name)
    return check_kind(kind_of(check_kind(name), codec_named(options.codec)))


def asked_name(options: Namespace) -> str | None:
    """Return the name of --queue, also of one that is written as a kind.

    Raises InvalidConfiguration when that kind is of another codec than --codec.
    """
    name, bar, codec = (options.queue or "").rpartition("|")
    if not bar:
        return options.queue  # type: ignore[no-any-return]
    if codec != options.codec:
        raise InvalidConfiguration(
            f"--queue {options.queue!r} is a kind of the codec {codec!r}, and --codec is "
            f"{options.codec!r}."
        )
    return name
