"""The numbers of advisory locks: 64 bits of a name's hash, the same in every process."""

from __future__ import annotations

from hashlib import blake2b


def lock_of(*names: str) -> int:
    """Return the lock's number; two names may share one, and then only wait for each other."""
    digest = blake2b("\0".join(names).encode(), digest_size=8, person=b"delayed_queue").digest()
    return int.from_bytes(digest, signed=True)
