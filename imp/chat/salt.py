"""What, besides its tokens, a prompt's KV depends on or is kept apart by, as one value: the salt of its hashes."""

from __future__ import annotations

from collections.abc import Sequence


def salt(tenant: str | None = None, adapter: bytes | None = None, media: Sequence[bytes] = ()) -> bytes:
    """Equal only where all three are. b"" where there is none of them.

    tenant: `cache_salt`, by which clients keep others from finding out what they have cached.
    adapter: a digest of the weights, so that one loaded again under its old name counts as another.
    media: digests of the images, in the order of the prompt.
    """
    parts = [(b"t", tenant.encode())] if tenant is not None else []
    if adapter is not None:
        parts.append((b"a", adapter))
    parts += [(b"m", each) for each in media]
    return b"".join(kind + len(value).to_bytes(4, "big") + value for kind, value in parts)
