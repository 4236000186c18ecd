"""What the server hands out to have it back unchanged: opaque text that only this process can read again.

Signed, not encrypted: whoever gets it is the one whose words are in it. Layout, in URL-safe base64: HMAC-SHA256 of what
it is for and of the rest, 32 bytes; then compressed JSON. The key is drawn when the process starts and never leaves it.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets
import zlib
from typing import Any

from imp.http.message import dumps

_TAG_BYTES = 32


def _for(purpose: str) -> bytes:
    return purpose.encode() + b"\0"


class Seal:
    """One key."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def seal(self, purpose: str, value: Any) -> str:
        """purpose: a word without which it is not opened again, so that nothing is passed off as something else."""
        packed = zlib.compress(dumps(value))
        return base64.urlsafe_b64encode(self._tag(_for(purpose) + packed) + packed).decode("ascii")

    def unseal(self, purpose: str, text: str) -> Any | None:
        """The value; None for anything this key has not sealed for this. Nothing is unpacked before that is known."""
        try:
            raw = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
        except (UnicodeEncodeError, binascii.Error):
            return None
        tag, packed = raw[:_TAG_BYTES], raw[_TAG_BYTES:]
        if not hmac.compare_digest(tag, self._tag(_for(purpose) + packed)):
            return None
        return json.loads(zlib.decompress(packed))

    def sign(self, text: str) -> str:
        """A signature of text that travels in the open."""
        return base64.urlsafe_b64encode(self._tag(text.encode())).decode("ascii")

    def signed(self, text: str, signature: str) -> bool:
        """Is this the signature `sign` gave?"""
        return hmac.compare_digest(signature.encode(), self.sign(text).encode())

    def _tag(self, packed: bytes) -> bytes:
        return hmac.digest(self._key, packed, "sha256")
