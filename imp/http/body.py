"""The extent of a request's body: which of the bytes that come belong to it. Decoding them is h11's."""

from __future__ import annotations

import re

from imp.http.head import HttpLimits, malformed, too_large


class Length:
    """The extent of a body of known length."""

    def __init__(self, length: int) -> None:
        self._left = length

    def take(self, buffer: bytearray) -> bytes:
        piece = bytes(buffer[: self._left])
        del buffer[: len(piece)]
        self._left -= len(piece)
        return piece


_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n\Z")
_TRAILER_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n\Z")


class Chunks:
    """The extent of a chunked body: how far the message goes, checked before h11 sees a byte, because h11 waits for
    ever for a chunk of 2^63 bytes and takes line ends that others do not."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._total = 0
        self._left = 0  # of the current chunk, its line end included
        self._in_trailers = False
        self._trailers = 0
        self._ended = False

    def take(self, buffer: bytearray) -> bytes:
        """Cut what belongs to this body off the buffer. ApiError 400 or 413."""
        at = 0
        while not self._ended and at < len(buffer):
            if self._left:
                at += self._skip_chunk(buffer, at)
                continue
            end = buffer.find(b"\n", at) + 1
            if not end:
                if len(buffer) - at > self._limits.chunk_line_bytes:
                    raise malformed("A line of the chunked body is too long.")
                break
            self._read_line(bytes(buffer[at:end]))
            at = end
        piece = bytes(buffer[:at])
        del buffer[:at]
        return piece

    def _skip_chunk(self, buffer: bytearray, at: int) -> int:
        taken = min(self._left, len(buffer) - at)
        for offset, wanted in ((self._left - 2, 13), (self._left - 1, 10)):  # CR LF after the chunk's data
            if 0 <= offset < taken and buffer[at + offset] != wanted:
                raise malformed("A chunk of the body is longer than its size says.")
        self._left -= taken
        return taken

    def _read_line(self, line: bytes) -> None:
        if self._in_trailers:
            self._trailers += 1
            self._ended = line == b"\r\n"
            if not self._ended and not (_TRAILER_LINE.match(line) and self._trailers <= self._limits.header_count):
                raise malformed("The trailer of the chunked body is not valid.")
            return
        match = _CHUNK_LINE.match(line)
        if not match or len(line) > self._limits.chunk_line_bytes:
            raise malformed("A chunk size of the body is not valid.")
        size = int(match.group(1), 16)
        self._total += size
        if self._total > self._limits.body_bytes:
            raise too_large(self._limits)
        self._in_trailers = size == 0
        self._left = size + 2 if size else 0
