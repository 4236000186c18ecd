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
_SIGNED = "imp1"  # begins signatures


def _for(purpose: str) -> bytes:
    return purpose.encode() + b"\0"


class Seal:
    """One key."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._id = self._tag(b"id").hex()[:16]

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

    def sign(self, purpose: str, text: str, shown: bool = True) -> str:
        """A signature of text that travels in the open; or, where it is not shown, one that holds the text."""
        mark = base64.urlsafe_b64encode(self._tag(_for(purpose) + text.encode())).decode("ascii")
        return f"{_SIGNED}.{self._id}.{mark if shown else self.seal(purpose, text)}"

    def signed(self, purpose: str, text: str, signature: str) -> str | None:
        """The text that was signed. "" where another process did that, as before a restart: who knows what it was.
        None: it is not what was signed."""
        kind, _, rest = signature.partition(".")
        id, _, mark = rest.partition(".")
        if kind != _SIGNED or len(id) != len(self._id) or not mark:
            return None
        if id != self._id:
            return ""
        if not text and (held := self.unseal(purpose, mark)) is not None:
            return str(held)
        return text if hmac.compare_digest(signature.encode(), self.sign(purpose, text).encode()) else None

    def _tag(self, packed: bytes) -> bytes:
        return hmac.digest(self._key, packed, "sha256")
