"""Who may come in: request ids, API keys, rates, concurrency, CORS, proxies. Decisions only; nothing here waits, reads
a body or knows a socket, and the clock is handed in.

Rules worth knowing:
- With keys configured everything needs one, unknown paths too, except routes marked open and OPTIONS.
- Without keys, routes marked admin answer only clients on this machine.
- Rates are token buckets: one minute's worth at once, then one every 60 / limit seconds; no doubling at a boundary.
- X-Forwarded-For is believed only as far as trusted proxies wrote it.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from imp.http.errors import ApiError, too_many, unavailable
from imp.http.message import Headers
from imp.http.router import Access

MAX_BUCKETS = 10_000  # clients remembered; the longest unseen is forgotten first
EXPOSED_HEADERS = (
    "X-Request-Id, Request-Id, X-Imp-Ignored, Retry-After, x-ratelimit-limit-requests, "
    "x-ratelimit-remaining-requests, x-ratelimit-reset-requests"
)

_NOT_PRINTABLE = re.compile(r"[^\x20-\x7e]")
_FIELD_NAMES = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z, -]{1,2000}\Z")


@dataclass(frozen=True, slots=True)
class GateSettings:
    """Who is let in."""

    api_keys: tuple[str, ...] = ()
    rate_limit_per_min: int = 0  # requests per key, or per client address where there are no keys; 0: no limit
    token_limit_per_min: int = 0  # tokens, counted when a request has ended; 0: no limit
    max_concurrent: int = 64  # requests that occupy the engine, queued ones included; 0: no limit
    cors_origins: tuple[str, ...] = ("*",)
    trusted_proxies: tuple[str, ...] = ()  # addresses or networks in CIDR notation

    def __post_init__(self) -> None:
        if any(not key for key in self.api_keys):
            raise ValueError("an API key must not be empty")
        for proxy in self.trusted_proxies:
            ipaddress.ip_network(proxy, strict=False)  # ValueError names what is wrong


class TokenBucket:
    """`per_minute` may be spent at once; then it refills evenly. Times in seconds of the caller's clock."""

    __slots__ = ("_at", "_level", "per_minute")

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def level(self, now: float) -> float:
        """What may be spent now; negative where more was spent than there was."""
        self._level = min(self.per_minute, self._level + (now - self._at) * self.per_minute / 60)
        self._at = now
        return self._level

    def spend(self, amount: float, now: float) -> None:
        self._level = self.level(now) - amount

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until `amount` may be spent; 0: now."""
        return max(0.0, (amount - self.level(now)) * 60 / self.per_minute)


class Gate:
    """The decisions before any handler runs. Mutable counters, owned by the event loop."""

    def __init__(self, settings: GateSettings | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings or GateSettings()
        self.draining = False
        self.generating = 0
        self._clock = clock
        self._keys = [_digest(key.encode()) for key in self.settings.api_keys]
        self._proxies = [ipaddress.ip_network(proxy, strict=False) for proxy in self.settings.trusted_proxies]
        self._requests: OrderedDict[str, TokenBucket] = OrderedDict()
        self._tokens: OrderedDict[str, TokenBucket] = OrderedDict()

    def client_ip(self, peer_ip: str, headers: Headers) -> str:
        """The client's address: the last one in X-Forwarded-For that no trusted proxy has."""
        hops = [hop.strip() for value in headers.all("x-forwarded-for") for hop in value.split(",")]
        address = peer_ip
        while hops and self._is_trusted(address):
            hop = hops.pop()
            if _address(hop) is None:
                break
            address = hop
        return address

    def identify(self, headers: Headers) -> str | None:
        """Which key the request shows, as a name for its buckets; None: no valid one. Time does not depend on it."""
        shown = [value.encode("latin-1") for value in headers.all("x-api-key")]
        for value in headers.all("authorization"):
            scheme, _, credentials = value.partition(" ")
            if scheme.lower() == "bearer":
                shown.append(credentials.strip().encode("latin-1"))
        found = None
        for candidate in map(_digest, shown[:4]):
            for index, key in enumerate(self._keys):
                if hmac.compare_digest(candidate, key):
                    found = f"key {index}"
        return found

    def authorize(self, access: Access, headers: Headers, client_ip: str) -> str:
        """Whom to charge for this request. ApiError 401 or 403."""
        if access is Access.OPEN:
            return client_ip
        if self._keys:
            who = self.identify(headers)
            if who is None:
                message = "A valid API key is needed: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
                raise ApiError(401, "invalid_api_key", message, headers={"WWW-Authenticate": "Bearer"})
            return who
        if access is Access.ADMIN and not _is_local(client_ip):
            message = "Without API keys this route answers only clients on the server's own machine."
            raise ApiError(403, "admin_is_local", message)
        return client_ip

    def owner(self, headers: Headers) -> str:
        """Whose stored things a request may see: a name made of its key itself, so that it stays the key's whatever
        other keys come and go. Without keys everybody sees everything: ""."""
        shown = self.identify(headers)
        return self._keys[int(shown.split()[1])].hex() if shown else ""

    def check_origin(self, headers: Headers) -> None:
        """Web pages may open WebSockets to any server and read them, CORS or not; so this is where an origin that is
        neither allowed nor the server's own is refused. ApiError 403."""
        origin, host = headers.get("origin"), headers.get("host") or ""
        if origin is None or origin.lower().partition("://")[2] == host.lower():
            return
        if "Access-Control-Allow-Origin" not in self.cors_headers(headers):
            raise ApiError(403, "origin_not_allowed", "Pages of this origin may not open a WebSocket here.")

    def refuse_while_draining(self) -> None:
        """ApiError 503 when the server is going down; the connection closes, so that the client looks elsewhere."""
        if self.draining:
            error = unavailable("draining", "The server is shutting down and takes no new requests.")
            error.headers["Connection"] = "close"
            raise error

    def charge_request(self, who: str) -> dict[str, str]:
        """Count one request; returns the x-ratelimit headers of its response. ApiError 429 with Retry-After."""
        now = self._clock()
        buckets = {
            unit: _bucket(known, who, limit, now)
            for unit, limit, known in (
                ("requests", self.settings.rate_limit_per_min, self._requests),
                ("tokens", self.settings.token_limit_per_min, self._tokens),
            )
            if limit
        }
        wait_s = max((bucket.wait_s(1, now) for bucket in buckets.values()), default=0.0)
        if not wait_s and "requests" in buckets:
            buckets["requests"].spend(1, now)
        headers = {name: value for unit in buckets for name, value in _rate_headers(unit, buckets[unit], now).items()}
        if wait_s:
            error = too_many("rate_limit_exceeded", "Too many requests; see Retry-After.", math.ceil(wait_s))
            error.headers |= headers
            raise error
        return headers

    def charge_tokens(self, who: str, count: int) -> None:
        """Count the tokens of a request that has ended; the bucket may go below zero and has to refill first."""
        if self.settings.token_limit_per_min:
            now = self._clock()
            _bucket(self._tokens, who, self.settings.token_limit_per_min, now).spend(count, now)

    def enter(self) -> None:
        """Take a place among the generating requests; give it back with `leave`. ApiError 429."""
        if self.settings.max_concurrent and self.generating >= self.settings.max_concurrent:
            raise too_many("queue_full", "The server is busy with as many requests as it takes; retry later.", 1)
        self.generating += 1

    def leave(self) -> None:
        assert self.generating > 0
        self.generating -= 1

    def cors_headers(self, headers: Headers) -> dict[str, str]:
        """What every response carries for a web page to read it; empty for an origin that is not allowed.

        "*" is sent without credentials, which the Fetch standard forbids together; configured origins are echoed.
        """
        if "*" in self.settings.cors_origins:
            return {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": EXPOSED_HEADERS}
        origin = headers.get("origin")
        if origin is None or origin not in self.settings.cors_origins:
            return {"Vary": "Origin"}
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Credentials": "true",
            "Access-Control-Expose-Headers": EXPOSED_HEADERS,
            "Vary": "Origin",
        }

    def preflight_headers(self, headers: Headers) -> dict[str, str]:
        """The answer to OPTIONS, besides `cors_headers`. The fields asked for are granted by name, because the
        wildcard does not cover Authorization."""
        if "Access-Control-Allow-Origin" not in self.cors_headers(headers):
            return {}
        wanted = headers.get("access-control-request-headers") or "*"
        return {
            "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
            "Access-Control-Allow-Headers": wanted if _FIELD_NAMES.match(wanted) else "*",
            "Access-Control-Max-Age": "600",
        }

    def _is_trusted(self, address: str) -> bool:
        parsed = _address(address)
        return parsed is not None and any(parsed in network for network in self._proxies)


def request_id(headers: Headers) -> tuple[str, str | None]:
    """The id of a request, and what of it came from the client: printable ASCII of X-Request-Id, 128 characters."""
    given = _NOT_PRINTABLE.sub("", headers.get("x-request-id") or "")[:128].strip()
    return (given, given) if given else ("req_" + secrets.token_hex(12), None)


def _digest(key: bytes) -> bytes:
    """Keys are compared by digest: equal lengths, whatever was sent."""
    return hashlib.sha256(key).digest()


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        parsed = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return mapped or parsed


def _is_local(text: str) -> bool:
    if not text:  # a Unix socket has no address
        return True
    address = _address(text)
    return address is not None and address.is_loopback


def _bucket(buckets: OrderedDict[str, TokenBucket], who: str, per_minute: int, now: float) -> TokenBucket:
    bucket = buckets.get(who)
    if bucket is None:
        bucket = buckets[who] = TokenBucket(per_minute, now)
        if len(buckets) > MAX_BUCKETS:
            buckets.popitem(last=False)
    buckets.move_to_end(who)
    return bucket


def _rate_headers(unit: str, bucket: TokenBucket, now: float) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{unit}": str(bucket.per_minute),
        f"x-ratelimit-remaining-{unit}": str(max(0, math.floor(bucket.level(now)))),
        f"x-ratelimit-reset-{unit}": f"{math.ceil(bucket.wait_s(bucket.per_minute, now))}s",
    }
