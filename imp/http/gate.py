"""Who may come in: request ids, API keys, rates, concurrency, CORS, proxies. Decisions only; nothing here waits, reads
a body or knows a socket, and the clock is handed in.

Rules worth knowing:
- With keys configured everything needs one, unknown paths too, except routes marked open and OPTIONS.
- Without keys, routes marked admin answer only clients on this machine.
- Rates are token buckets: one minute's worth at once, then one every 60 / limit seconds; no doubling at a boundary.
- A request costs its key, and its address. Tokens are charged when a request has ended, so that a bucket may go below
  zero, and has to refill before the next one. An IPv6 client is its /64.
- X-Forwarded-For and Forwarded are believed only as far as trusted proxies wrote them; where both are there and name
  different clients, neither is.
- allowed_hosts keeps web pages out that got a name of theirs to point here (DNS rebinding).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from imp.http.errors import ApiError, too_many, unavailable
from imp.http.message import Headers
from imp.http.rates import Rates
from imp.http.router import Access

EXPOSED_HEADERS = ", ".join(
    [
        *("X-Request-Id", "Request-Id", "X-Imp-Ignored", "X-Imp-Truncated", "X-Imp-Queue-Position", "Retry-After"),
        *(f"x-ratelimit-{what}-{unit}" for unit in ("requests", "tokens") for what in ("limit", "remaining", "reset")),
    ]
)

_NOT_PRINTABLE = re.compile(r"[^\x20-\x7e]")
_FIELD_NAMES = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z, -]{1,2000}\Z")


@dataclass(frozen=True, slots=True)
class GateSettings:
    """Who is let in. Limits of 0 are none."""

    api_keys: tuple[str, ...] = ()
    rate_limit_per_min: int = 0  # requests per key, or per client address where there are no keys
    token_limit_per_min: int = 0  # tokens, by the same
    ip_rate_limit_per_min: int = 0  # requests per client address, whatever the key, wrong ones too
    ip_token_limit_per_min: int = 0
    max_concurrent: int = 64  # requests that occupy the engine, queued ones included
    cors_origins: tuple[str, ...] = ("*",)
    cors_credentials: bool = True  # for origins that are named
    cors_headers: tuple[str, ...] = ()  # empty: those a page asks for
    cors_max_age_s: int = 600
    trusted_proxies: tuple[str, ...] = ()  # addresses or networks in CIDR notation
    allowed_hosts: tuple[str, ...] = ()  # empty: any; "*.name" allows all below name

    def __post_init__(self) -> None:
        if any(not key for key in self.api_keys):
            raise ValueError("an API key must not be empty")
        for proxy in self.trusted_proxies:
            ipaddress.ip_network(proxy, strict=False)  # ValueError names what is wrong


class Gate:
    """The decisions before any handler runs. Mutable counters, owned by the event loop."""

    def __init__(self, settings: GateSettings | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings or GateSettings()
        self.draining = False
        self.generating = 0
        self._clock = clock
        self._keys: list[tuple[bytes, str]] = []
        self.use_keys(self.settings.api_keys)
        self._proxies = [ipaddress.ip_network(proxy, strict=False) for proxy in self.settings.trusted_proxies]
        own = self.settings
        self._key_rates = Rates(own.rate_limit_per_min, own.token_limit_per_min)
        self._ip_rates = Rates(own.ip_rate_limit_per_min, own.ip_token_limit_per_min)
        self._hosts = frozenset(host.lower().rstrip(".") for host in own.allowed_hosts)
        self._any_origin = "*" in own.cors_origins
        self._open_cors = {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": EXPOSED_HEADERS}

    def use_keys(self, keys: Sequence[str]) -> None:
        """From now on these keys are valid, and no others. Keys that stay keep their buckets."""
        digests = [_digest(key.encode()) for key in keys]
        self._keys = [(digest, f"key {digest.hex()[:16]}") for digest in digests]

    @property
    def has_keys(self) -> bool:
        return bool(self._keys)

    def client_ip(self, peer_ip: str, headers: Headers) -> str:
        """The client's address: the last one in X-Forwarded-For, or Forwarded, that no trusted proxy has."""
        if not self._proxies or not self._is_trusted(peer_ip):
            return peer_ip
        listed = [hop.strip() for value in headers.all("x-forwarded-for") for hop in value.split(",")]
        standard = [_forwarded_for(hop) for value in headers.all("forwarded") for hop in value.split(",")]
        named = {self._last_untrusted(peer_ip, hops) for hops in (listed, standard) if hops}
        return named.pop() if len(named) == 1 else peer_ip

    def check_host(self, headers: Headers) -> None:
        """ApiError 403 for a request that is addressed to a host this server is not."""
        if not self._hosts:
            return
        name = _host_name(headers.get("host", "") or "")
        if name in self._hosts or name == "localhost" or _is_loopback(name):
            return
        labels = name.split(".")
        if any("*." + ".".join(labels[at:]) in self._hosts for at in range(1, len(labels))):
            return
        raise ApiError(403, "host_not_allowed", "The Host field names a host this server does not answer for.")

    def identify(self, headers: Headers) -> str | None:
        """Which key the request shows, as a name for its buckets; None: no valid one. Time does not depend on it."""
        shown = [value.encode("latin-1") for value in headers.all("x-api-key")]
        for value in headers.all("authorization"):
            scheme, _, credentials = value.partition(" ")
            if scheme.lower() == "bearer":
                shown.append(credentials.strip().encode("latin-1"))
        found = None
        for candidate in map(_digest, shown[:4]):
            for key, name in self._keys:
                if hmac.compare_digest(candidate, key):
                    found = name
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

    def charge_address(self, client_ip: str) -> dict[str, str]:
        """Count one request, whoever makes it, against its address; as `charge_request` does."""
        return self._ip_rates.charge(_network(client_ip), self._clock()) if self._ip_rates.any else {}

    def charge_request(self, who: str) -> dict[str, str]:
        """Count one request; returns the x-ratelimit headers of its response. ApiError 429 with Retry-After."""
        return self._key_rates.charge(_network(who), self._clock()) if self._key_rates.any else {}

    def charge_tokens(self, who: str, client_ip: str, count: int) -> None:
        """Count the tokens of a request that has ended; a bucket may go below zero and has to refill first."""
        now = self._clock()
        self._key_rates.charge_tokens(_network(who), count, now)
        self._ip_rates.charge_tokens(_network(client_ip), count, now)

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
        The caller does not change what it gets.
        """
        if self._any_origin:
            return self._open_cors
        if not self.settings.cors_origins:
            return {}
        origin = headers.get("origin")
        if origin is None or origin not in self.settings.cors_origins:
            return {"Vary": "Origin"}
        granted = {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": EXPOSED_HEADERS}
        credentials = {"Access-Control-Allow-Credentials": "true"} if self.settings.cors_credentials else {}
        return granted | credentials | {"Vary": "Origin"}

    def preflight_headers(self, headers: Headers) -> dict[str, str]:
        """The answer to OPTIONS, besides `cors_headers`. The fields asked for are granted by name, because the
        wildcard does not cover Authorization."""
        if "Access-Control-Allow-Origin" not in self.cors_headers(headers):
            return {}
        wanted = ", ".join(self.settings.cors_headers) or headers.get("access-control-request-headers") or "*"
        return {
            "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
            "Access-Control-Allow-Headers": wanted if _FIELD_NAMES.match(wanted) else "*",
            "Access-Control-Max-Age": str(self.settings.cors_max_age_s),
        }

    def _last_untrusted(self, peer_ip: str, hops: list[str]) -> str:
        """Walk back from the peer as long as trusted proxies vouch for the hop before them."""
        address = peer_ip
        while hops and self._is_trusted(address):
            hop = hops.pop()
            if _address(hop) is None:
                break
            address = hop
        return address

    def _is_trusted(self, address: str) -> bool:
        parsed = _address(address)
        return parsed is not None and any(parsed in network for network in self._proxies)


def request_id(headers: Headers) -> tuple[str, str | None]:
    """The id of a request, and what of it came from the client: printable ASCII of X-Request-Id, 128 characters."""
    sent = headers.get("x-request-id")
    given = _NOT_PRINTABLE.sub("", sent)[:128].strip() if sent else ""
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
    return not text or _is_loopback(text)  # a Unix socket has no address


def _is_loopback(text: str) -> bool:
    address = _address(text)
    return address is not None and address.is_loopback


def _network(who: str) -> str:
    """The name of a bucket: a key's own, an IPv4 address, the /64 an IPv6 address is in."""
    if ":" not in who:
        return who
    address = _address(who)
    if not isinstance(address, ipaddress.IPv6Address):
        return who if address is None else str(address)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))


_FORWARDED_FOR = re.compile(r"for=(?:\"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+))(?::[0-9]+)?\"|([0-9.]+))\Z", re.IGNORECASE)


def _forwarded_for(element: str) -> str:
    """The address of `for=` in one element of Forwarded (RFC 7239 4); "" where it names none."""
    matches = (_FORWARDED_FOR.match(pair.strip()) for pair in element.split(";"))
    return next((match[1] or match[2] or match[3] for match in matches if match), "")


def _host_name(host: str) -> str:
    """The name in a Host field that is valid: no port, no brackets, no last dot, lower case."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.rstrip(".").lower()
