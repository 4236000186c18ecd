"""The head of a request: where it ends, what it says, and every way in which it can be wrong (RFC 9112 2 to 6).

h11 reads a head after this file has let it pass: what the two agree on is what everybody in front of us reads, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from imp.http.errors import ApiError
from imp.http.message import Headers

KiB = 1024


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What a request may weigh."""

    request_line_bytes: int = 16 * KiB  # 414 past it
    head_bytes: int = 64 * KiB  # request line and fields together; 431
    header_count: int = 256  # 431
    body_bytes: int = 100 * KiB * KiB  # 413
    chunk_line_bytes: int = 4 * KiB  # a chunk size with its extensions, or one trailer field; 400


@dataclass(frozen=True, slots=True)
class Head:
    """A complete, valid head. `body_length` is None for a chunked body."""

    method: str
    target: str  # origin form: path and query; also "*", or CONNECT's authority
    headers: Headers
    http_version: str
    body_length: int | None
    expects_continue: bool
    keeps_connection: bool  # the client will


_BARE_LINE_END = re.compile(rb"(?<!\r)\n|\r(?=[^\n])")
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_TOKEN_BYTE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]")
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e]+) HTTP/([0-9]\.[0-9])\Z")
_FIELDS = re.compile(rb"(?:" + _TOKEN + rb"+:[\t\x20-\x7e\x80-\xff]*+\r\n)*+\Z")
_ABSOLUTE = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
# RFC 3986 reg-name or IP literal, and a port; empty is allowed (RFC 9110 7.2)
_HOST = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?\Z")


def find_end(buffer: bytearray, scanned: int, limits: HttpLimits) -> int:
    """Where the head's last line ends, -1 while it is not there. ApiError as soon as it can never be valid."""
    if not _TOKEN_BYTE.match(buffer):
        raise malformed("The request does not begin with an HTTP method.")
    end = buffer.find(b"\r\n\r\n", max(0, scanned - 3))
    known = len(buffer) if end < 0 else end
    line = buffer.find(b"\r\n", 0, limits.request_line_bytes + 2)
    if line < 0 and known > limits.request_line_bytes:
        raise ApiError(414, "uri_too_long", f"The request line is longer than {limits.request_line_bytes} bytes.")
    if known > limits.head_bytes or buffer.count(b"\r\n", 0, known) > limits.header_count:
        raise ApiError(
            431,
            "headers_too_large",
            f"The request has more than {limits.header_count} header fields or {limits.head_bytes} bytes of them.",
        )
    if _BARE_LINE_END.search(buffer, max(0, scanned - 1), known):
        raise malformed("A line of the request head does not end with CR LF.")
    return end


def read_head(raw: bytes, limits: HttpLimits) -> Head:
    """A head that ends with its empty line. ApiError for anything that two readers might take in two ways."""
    at = raw.find(b"\r\n")
    match = _REQUEST_LINE.match(raw[:at])
    if not match:
        raise malformed("The request line is not valid HTTP.")
    method, target, version = (group.decode("ascii") for group in match.groups())
    if version not in ("1.0", "1.1"):
        raise ApiError(505, "http_version", f"HTTP/{version} is not spoken here, only HTTP/1.1 and HTTP/1.0.")
    headers = Headers(_read_fields(raw[at + 2 : -2]))
    _check_host(headers, version)
    length = _body_length(method, headers, version, limits)
    expects = _expects_continue(headers, version)
    keeps = version == "1.1" and not _says_close(headers)
    return Head(method, _origin_form(method, target), headers, version, length, expects, keeps)


def request_line(raw: bytes | bytearray) -> tuple[str, str]:
    """Method and target of a head, however wrong or long the rest of it is; ("", "") where the line itself is."""
    match = _REQUEST_LINE.match(bytes(raw[: max(0, raw.find(b"\r\n"))]))
    return (match[1].decode("ascii"), match[2].decode("ascii")) if match else ("", "")


def _read_fields(block: bytes) -> list[tuple[str, str]]:
    """Names and values of lines that all end with CR LF."""
    if not _FIELDS.match(block):
        folded = block[:1] in (b" ", b"\t") or b"\n " in block or b"\n\t" in block
        raise malformed(
            "A header field is folded over several lines, which HTTP no longer allows."
            if folded
            else "A header field is not valid HTTP."
        )
    lines = block.decode("latin-1").split("\r\n")
    lines.pop()
    fields = []
    for line in lines:
        name, _, value = line.partition(":")
        fields.append((name, value.strip(" \t")))
    return fields


def _check_host(headers: Headers, version: str) -> None:
    hosts = headers.all("host")
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        raise malformed("The request must have exactly one Host field.")
    if hosts and not _HOST.match(hosts[0]):
        raise malformed("The Host field is not a host name.")


def _body_length(method: str, headers: Headers, version: str, limits: HttpLimits) -> int | None:
    """Bytes of body to come; None: chunked."""
    lengths, codings = headers.all("content-length"), headers.all("transfer-encoding")
    if codings:
        if version == "1.0" or lengths:
            raise malformed("Transfer-Encoding goes neither with HTTP/1.0 nor with Content-Length.")
        if [coding.lower() for coding in codings] != ["chunked"]:
            raise ApiError(501, "transfer_encoding", "The only Transfer-Encoding spoken here is chunked.")
        return None
    if len(lengths) > 1 or (lengths and not re.fullmatch(r"[0-9]{1,20}", lengths[0])):
        raise malformed("Content-Length must be one decimal number.")
    if not lengths:
        if version == "1.0" and method in ("POST", "PUT", "PATCH"):  # could only end with the connection
            raise ApiError(411, "length_required", "A body in HTTP/1.0 needs a Content-Length.")
        return 0
    length = int(lengths[0])
    if length > limits.body_bytes:
        raise too_large(limits)
    return length


def _says_close(headers: Headers) -> bool:
    return any(
        token.strip(" \t").lower() == "close" for value in headers.all("connection") for token in value.split(",")
    )


def _expects_continue(headers: Headers, version: str) -> bool:
    expectations = [value.lower() for value in headers.all("expect")]
    if version == "1.0" or not expectations:
        return False
    if expectations != ["100-continue"]:
        raise ApiError(417, "expectation_failed", "The only expectation met here is 100-continue.")
    return True


def _origin_form(method: str, target: str) -> str:
    if method == "CONNECT" or target.startswith("/") or (target == "*" and method == "OPTIONS"):
        return target
    absolute = _ABSOLUTE.match(target)
    if not absolute:
        raise malformed("The request target is neither a path nor an http URL.")
    rest = target[absolute.end() :]
    return rest if rest.startswith("/") else "/" + rest


def malformed(message: str) -> ApiError:
    return ApiError(400, "malformed_request", message)


def too_large(limits: HttpLimits) -> ApiError:
    return ApiError(413, "body_too_large", f"The request body is larger than {limits.body_bytes} bytes.")
