"""Who may come in: keys, rates, concurrency, CORS and proxies, with a clock the test holds; then through the door."""

from __future__ import annotations

import asyncio
import random

import pytest

from imp.http.application import Application
from imp.http.errors import ApiError
from imp.http.gate import Gate, GateSettings, request_id
from imp.http.message import Full, Headers, HttpRequest, Response, json_response
from imp.http.rates import Rates, TokenBucket
from imp.http.router import Access, Route, Router
from imp.obs.metrics import Metrics
from imp.obs.record import Outcome, RequestRecord


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def echo(request: HttpRequest) -> Response:
    return json_response({"path": request.path, "params": request.params})


async def broken(request: HttpRequest) -> Response:
    raise RuntimeError("secret path /etc/passwd")


ROUTES = [
    Route(("GET",), "/health", echo, Access.OPEN),
    Route(("GET",), "/metrics", echo),
    Route(("POST",), "/v1/chat/completions", echo, generates=True),
    Route(("POST",), "/v1/messages", echo, generates=True),
    Route(("GET",), "/v1/models/{id}", echo),
    Route(("POST",), "/tokenize", echo),
    Route(("POST",), "/admin/suspend", echo, Access.ADMIN),
    Route(("GET",), "/broken", broken),
]


def door(settings: GateSettings, clock: Clock | None = None, metrics: Metrics | None = None) -> Application:
    gate = Gate(settings, clock or Clock())
    return Application(Router(ROUTES), gate, *([metrics.observe] if metrics else []))


def ask(
    app: Application, method: str, path: str, headers: dict[str, str] | None = None, peer: str = "127.0.0.1"
) -> Full:
    """One request through the door, whole; the exchange is ended."""
    request = HttpRequest(method, path, headers=Headers((headers or {}).items()), peer_ip=peer)
    admitted = app.admit(request)
    response = admitted if isinstance(admitted, Full) else asyncio.run(admitted(request))  # type: ignore[arg-type]
    request.end()
    assert isinstance(response, Full)
    return response


KEYS = GateSettings(api_keys=("sk-one", "schlüssel"))
GUARDED = [(method, route.pattern.replace("{id}", "m")) for route in ROUTES for method in route.methods]
GUARDED = [(method, path) for method, path in GUARDED if path != "/health"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer sk-tw0"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer"},
        {"authorization": "sk-one"},
        {"authorization": "Basic sk-one"},
        {"authorization": "Bearer sk-one sk-one"},
        {"x-api-key": "sk-onE"},
        {"x-api-key": ""},
        {"x-api-key": "\xff\xfe"},
        {"authorization": "Bearer \xe9"},
    ],
)
def test_every_route_but_health_needs_a_key(headers: dict[str, str]) -> None:
    # G10-02
    app = door(KEYS)
    spellings = [
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/V1/chat/completions",
        "/v1/chat/completions%2f",
        "/nowhere",
    ]
    spellings += ["/v1/%2e%2e/v1/models/m", "/v1/models/%00"]
    for method, path in GUARDED + [(method, path) for method in ("GET", "POST", "HEAD", "PUT") for path in spellings]:
        response = ask(app, method, path, headers)
        assert response.status == 401, (method, path)
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert b'"authentication_error"' in response.body
        assert b"sk-" not in response.body
    assert ask(app, "GET", "/health", headers).status == 200
    assert ask(app, "HEAD", "/health", headers).status == 200
    assert ask(app, "OPTIONS", "/v1/chat/completions", headers).status == 204


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer sk-one"},
        {"authorization": "bearer   sk-one "},
        {"x-api-key": "sk-one"},
        {"authorization": "Bearer wrong", "x-api-key": "sk-one"},
        {"x-api-key": "schlüssel".encode().decode("latin-1")},
    ],
)
def test_any_key_in_either_header_opens_every_route(headers: dict[str, str]) -> None:
    app = door(KEYS)
    for method, path in GUARDED:
        assert ask(app, method, path, headers).status == (500 if path == "/broken" else 200), path
    assert ask(app, "GET", "/nowhere", headers).status == 404
    assert ask(app, "GET", "/tokenize", headers).status == 405


def test_keys_are_told_apart() -> None:
    gate = Gate(KEYS)
    names = {gate.identify(Headers([("x-api-key", key.encode().decode("latin-1"))])) for key in KEYS.api_keys}
    assert len(names) == 2 and None not in names
    assert not any("sk-one" in str(name) for name in names)


def test_an_empty_key_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="empty"):
        GateSettings(api_keys=("",))


def test_admin_without_keys_is_for_this_machine() -> None:
    app = door(GateSettings())
    assert ask(app, "POST", "/admin/suspend", peer="127.0.0.1").status == 200
    assert ask(app, "POST", "/admin/suspend", peer="::1").status == 200
    assert ask(app, "POST", "/admin/suspend", peer="::ffff:127.0.0.1").status == 200
    assert ask(app, "POST", "/admin/suspend", peer="192.0.2.1").status == 403
    assert ask(app, "POST", "/tokenize", peer="192.0.2.1").status == 200


def test_five_a_minute_per_key_with_a_bucket() -> None:
    # G10-15
    clock = Clock()
    app = door(GateSettings(api_keys=("a", "b"), rate_limit_per_min=5), clock)
    paths = ["/v1/chat/completions", "/v1/messages", "/tokenize", "/v1/messages", "/v1/chat/completions"]
    for left, path in zip((4, 3, 2, 1, 0), paths, strict=True):
        response = ask(app, "POST", path, {"x-api-key": "a"})
        assert response.status == 200
        assert response.headers["x-ratelimit-limit-requests"] == "5"
        assert response.headers["x-ratelimit-remaining-requests"] == str(left)
    for path, word in (
        ("/v1/chat/completions", b'"code":"rate_limit_exceeded"'),
        ("/v1/messages", b'"rate_limit_error"'),
    ):
        response = ask(app, "POST", path, {"x-api-key": "a"})
        assert response.status == 429 and word in response.body
        assert response.headers["Retry-After"] == "12"
        assert response.headers["x-ratelimit-remaining-requests"] == "0"
        assert response.headers["x-ratelimit-reset-requests"] == "60s"
    assert ask(app, "POST", "/tokenize", {"x-api-key": "b"}).status == 200
    assert ask(app, "GET", "/health").status == 200
    clock.now += 11.9
    assert ask(app, "POST", "/tokenize", {"x-api-key": "a"}).status == 429
    clock.now += 0.2
    assert ask(app, "POST", "/tokenize", {"x-api-key": "a"}).status == 200
    assert ask(app, "POST", "/tokenize", {"x-api-key": "a"}).status == 429


def test_a_wrong_key_costs_nobody_anything() -> None:
    app = door(GateSettings(api_keys=("a",), rate_limit_per_min=1))
    for _ in range(3):
        assert ask(app, "POST", "/tokenize", {"x-api-key": "x"}).status == 401
    assert ask(app, "POST", "/tokenize", {"x-api-key": "a"}).status == 200


def test_without_keys_addresses_are_limited_apart() -> None:
    app = door(GateSettings(rate_limit_per_min=1))
    assert ask(app, "POST", "/tokenize", peer="192.0.2.1").status == 200
    assert ask(app, "POST", "/tokenize", peer="192.0.2.1").status == 429
    assert ask(app, "POST", "/tokenize", peer="192.0.2.2").status == 200


def test_tokens_are_charged_afterwards_and_have_to_come_back() -> None:
    clock = Clock()
    gate = Gate(GateSettings(token_limit_per_min=1000), clock)
    assert gate.charge_request("a")["x-ratelimit-remaining-tokens"] == "1000"
    gate.charge_tokens("a", "192.0.2.1", 4000)
    with pytest.raises(ApiError) as caught:
        gate.charge_request("a")
    assert caught.value.status == 429 and caught.value.headers["Retry-After"] == "181"  # 3001 tokens at 1000 / 60 s
    gate.charge_request("b")
    clock.now += 181
    gate.charge_request("a")


def test_a_bucket_never_gives_more_than_its_rate_seed_2() -> None:
    """Over any span, at most one minute's worth and the refill: no burst of two at a window's boundary."""
    random_ = random.Random(2)
    now, per_minute = 0.0, 30
    bucket = TokenBucket(per_minute, now)
    spent: list[float] = []
    for _ in range(5000):
        now += random_.choice((0.0, 0.01, 1.0, 2.0, 30.0))
        wait_s = bucket.wait_s(1, now)
        if wait_s == 0:
            bucket.spend(1, now)
            spent.append(now)
        else:
            assert 0 < wait_s <= 60 / per_minute + 1e-6
    for first in range(0, len(spent), 7):
        for last in range(first, min(first + 200, len(spent))):
            assert last - first + 1 <= per_minute * (1 + (spent[last] - spent[first]) / 60) + 1e-6


def test_buckets_are_bounded() -> None:
    rates = Rates(1, 0)
    for index in range(10_100):
        rates.charge(str(index), 0.0)
    assert rates.known("requests") == 10_000


def test_generating_requests_are_limited_and_places_come_back() -> None:
    metrics = Metrics()
    app = door(GateSettings(max_concurrent=2), metrics=metrics)
    app.gate.enter(), app.gate.enter()
    chat, messages = ask(app, "POST", "/v1/chat/completions"), ask(app, "POST", "/v1/messages")
    assert (chat.status, messages.status) == (429, 429)
    assert b'"type":"rate_limit_error"' in chat.body and b'"type":"overloaded_error"' in messages.body
    assert chat.headers["Retry-After"] == "1"
    assert ask(app, "POST", "/tokenize").status == 200
    app.gate.leave()
    for _ in range(5):
        assert ask(app, "POST", "/v1/chat/completions").status == 200
    assert app.gate.generating == 1
    assert b"imp_requests_rejected_total 2\n" in metrics.expose()


def test_refusals_at_the_door_are_recorded_once_and_only_for_generating_routes() -> None:
    records: list[RequestRecord] = []
    app = Application(Router(ROUTES), Gate(KEYS), records.append)
    for path in ("/v1/messages", "/tokenize", "/nowhere"):
        ask(app, "POST", path)
    ask(app, "POST", "/v1/messages", {"x-api-key": "sk-one"})  # past the door the handler's own
    assert [(record.endpoint, record.status, record.outcome) for record in records] == [
        ("/v1/messages", 401, Outcome.REJECTED)
    ]


def test_draining_is_503_and_closes_but_probes_answer() -> None:
    # G10-08
    app = door(GateSettings())
    app.gate.draining = True
    for path in ("/v1/chat/completions", "/v1/messages"):
        response = ask(app, "POST", path)
        assert response.status == 503 and response.headers["Connection"] == "close"
        assert "Retry-After" in response.headers
    assert ask(app, "GET", "/health").status == 200


@pytest.mark.parametrize(
    ("given", "kept"),
    [("abc-1", "abc-1"), (" a b ", "a b"), ("x" * 300, "x" * 128), ("a\té\x7fb", "ab"), ("\xe9", None), (None, None)],
)
def test_request_ids(given: str | None, kept: str | None) -> None:
    id_, client = request_id(Headers([] if given is None else [("X-Request-Id", given)]))
    assert client == kept
    assert id_ == kept if kept else id_.startswith("req_") and len(id_) > 16


def test_every_answer_carries_its_id() -> None:
    app = door(GateSettings())
    for method, path in [
        ("GET", "/health"),
        ("GET", "/nowhere"),
        ("PUT", "/health"),
        ("GET", "/broken"),
        ("OPTIONS", "*"),
    ]:
        assert ask(app, method, path, {"x-request-id": "mine"}).headers["X-Request-Id"] == "mine"
    for method in ("POST", "GET"):
        headers = ask(app, method, "/v1/messages", {"x-request-id": "mine"}).headers
        assert headers["Request-Id"] == headers["X-Request-Id"] == "mine"


def test_an_unexpected_error_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    response = ask(door(GateSettings()), "GET", "/broken")
    assert response.status == 500 and b"passwd" not in response.body and b"internal_error" in response.body
    assert "passwd" in caplog.text and response.headers["X-Request-Id"] in caplog.text


def test_compressed_bodies_are_a_415() -> None:
    assert ask(door(GateSettings()), "POST", "/tokenize", {"content-encoding": "gzip"}).status == 415


def test_any_origin_by_default_and_never_with_credentials() -> None:
    app = door(KEYS)
    for response in (ask(app, "POST", "/tokenize", {"origin": "http://a.test"}), ask(app, "GET", "/health")):
        assert response.headers["Access-Control-Allow-Origin"] == "*"
        assert "Access-Control-Allow-Credentials" not in response.headers
    asked = "authorization,x-stainless-os,content-type"
    headers = {
        "origin": "http://a.test",
        "access-control-request-headers": asked,
        "access-control-request-method": "POST",
    }
    response = ask(app, "OPTIONS", "/v1/chat/completions", headers)
    assert response.status == 204 and response.body == b""
    assert response.headers["Access-Control-Allow-Headers"] == asked
    assert "POST" in response.headers["Access-Control-Allow-Methods"]


def test_configured_origins_are_echoed_and_others_get_nothing() -> None:
    # G10-03
    app = door(GateSettings(cors_origins=("https://ui.test",)))
    good = ask(app, "OPTIONS", "/tokenize", {"origin": "https://ui.test"})
    assert good.headers["Access-Control-Allow-Origin"] == "https://ui.test" and good.headers["Vary"] == "Origin"
    for origin in ("http://evil.test", "https://ui.test.evil", "null", "https://ui.test\x00"):
        for method in ("OPTIONS", "POST"):
            headers = ask(app, method, "/tokenize", {"origin": origin}).headers
            assert not any(name.startswith("Access-Control") for name in headers)
            assert headers["Vary"] == "Origin"


def test_a_preflight_never_echoes_what_is_no_field_name() -> None:
    headers = {"origin": "x", "access-control-request-headers": "a\x00b"}
    assert ask(door(GateSettings()), "OPTIONS", "/", headers).headers["Access-Control-Allow-Headers"] == "*"


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.1", "192.0.2.9", "192.0.2.9"),
        ("10.0.0.1", "6.6.6.6, 192.0.2.9, 10.0.0.2", "192.0.2.9"),
        ("192.0.2.1", "6.6.6.6", "192.0.2.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "garbage", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("fd00::1", "2001:db8::5", "2001:db8::5"),
        ("::ffff:10.0.0.1", "192.0.2.9", "192.0.2.9"),
    ],
)
def test_forwarded_addresses_are_believed_from_proxies_only(peer: str, forwarded: str, client: str) -> None:
    gate = Gate(GateSettings(trusted_proxies=("10.0.0.0/8", "fd00::1")))
    assert gate.client_ip(peer, Headers([("X-Forwarded-For", forwarded)])) == client
    assert Gate().client_ip(peer, Headers([("X-Forwarded-For", forwarded)])) == peer


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ("for=192.0.2.9", "192.0.2.9"),
        ("For=192.0.2.9;proto=http;by=10.0.0.1", "192.0.2.9"),
        ('proto=https; for="192.0.2.9:4711"', "192.0.2.9"),
        ('for="[2001:db8::5]"', "2001:db8::5"),
        ('for="[2001:db8::5]:4711"', "2001:db8::5"),
        ("for=6.6.6.6, for=192.0.2.9, for=10.0.0.2", "192.0.2.9"),
        ("for=192.0.2.9, for=unknown", "10.0.0.1"),  # the nearest proxy does not tell
        ("for=_hidden", "10.0.0.1"),
        ("by=192.0.2.9", "10.0.0.1"),
        ('for="192.0.2.9', "10.0.0.1"),
        ("for=999.0.2.9", "10.0.0.1"),
        ("", "10.0.0.1"),
    ],
)
def test_the_standard_forwarded_field_is_read(forwarded: str, client: str) -> None:  # RFC 7239
    gate = Gate(GateSettings(trusted_proxies=("10.0.0.0/8",)))
    assert gate.client_ip("10.0.0.1", Headers([("Forwarded", forwarded)])) == client
    assert gate.client_ip("192.0.2.1", Headers([("Forwarded", forwarded)])) == "192.0.2.1"


def test_two_forwarding_fields_that_disagree_are_not_believed() -> None:
    """A proxy that writes one of them passes the other on as the client sent it."""
    gate = Gate(GateSettings(trusted_proxies=("10.0.0.0/8",)))
    both = [("X-Forwarded-For", "192.0.2.9"), ("Forwarded", "for=192.0.2.9")]
    assert gate.client_ip("10.0.0.1", Headers(both)) == "192.0.2.9"
    lie = [("X-Forwarded-For", "192.0.2.9"), ("Forwarded", "for=127.0.0.1")]
    assert gate.client_ip("10.0.0.1", Headers(lie)) == "10.0.0.1"


def test_keys_change_while_serving_and_those_that_stay_keep_what_they_spent() -> None:
    clock = Clock()
    app = door(GateSettings(api_keys=("old", "stays"), rate_limit_per_min=1), clock)
    assert ask(app, "POST", "/tokenize", {"x-api-key": "stays"}).status == 200
    app.gate.use_keys(["stays", "new"])
    assert ask(app, "POST", "/tokenize", {"x-api-key": "old"}).status == 401
    assert ask(app, "POST", "/tokenize", {"x-api-key": "new"}).status == 200
    assert ask(app, "POST", "/tokenize", {"x-api-key": "stays"}).status == 429


def test_an_address_is_limited_whatever_keys_it_shows() -> None:
    clock = Clock()
    app = door(GateSettings(api_keys=("a", "b"), ip_rate_limit_per_min=3), clock)
    for key, status in (("a", 200), ("wrong", 401), ("b", 200), ("a", 429), ("wrong", 429)):
        assert ask(app, "POST", "/tokenize", {"x-api-key": key}, peer="192.0.2.1").status == status
    assert ask(app, "GET", "/nowhere", peer="192.0.2.1").status == 429
    assert ask(app, "GET", "/health", peer="192.0.2.1").status == 200
    assert ask(app, "POST", "/tokenize", {"x-api-key": "a"}, peer="192.0.2.2").status == 200


def test_the_headers_tell_of_the_limit_that_has_less_left() -> None:
    app = door(GateSettings(api_keys=("a", "b"), rate_limit_per_min=10, ip_rate_limit_per_min=4))
    limits = []
    for key in "aab":
        headers = ask(app, "POST", "/tokenize", {"x-api-key": key}).headers
        limits.append((headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"]))
    assert limits == [("4", "3"), ("4", "2"), ("4", "1")]


def test_an_ipv6_client_is_its_64_bit_network() -> None:
    app = door(GateSettings(rate_limit_per_min=1))
    assert ask(app, "POST", "/tokenize", peer="2001:db8:0:1::1").status == 200
    assert ask(app, "POST", "/tokenize", peer="2001:db8:0:1:ffff::9").status == 429
    assert ask(app, "POST", "/tokenize", peer="2001:db8:0:2::1").status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("llm.test", 200),
        ("LLM.test:8080", 200),
        ("llm.test.", 200),
        ("a.lan.test", 200),
        ("b.a.lan.test:1", 200),
        ("lan.test", 403),
        ("localhost:8080", 200),
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("evil.test", 403),
        ("llm.test.evil.test", 403),
        ("xlan.test", 403),
        ("192.0.2.1", 403),
        ("", 403),
    ],
)
def test_only_allowed_hosts_are_answered_for(host: str, status: int) -> None:
    # G10-03: Host: evil.test while bound to loopback
    app = door(GateSettings(allowed_hosts=("llm.test", "*.lan.test")))
    assert ask(app, "POST", "/tokenize", {"host": host}).status == status
    assert ask(app, "GET", "/health", {"host": host}).status == 200
    assert ask(door(GateSettings()), "POST", "/tokenize", {"host": host}).status == 200


def test_cors_can_be_narrowed_and_switched_off() -> None:
    narrow = GateSettings(
        cors_origins=("https://ui.test",), cors_credentials=False, cors_headers=("authorization",), cors_max_age_s=5
    )
    asked = {"origin": "https://ui.test", "access-control-request-headers": "authorization, x-other"}
    headers = ask(door(narrow), "OPTIONS", "/tokenize", asked).headers
    assert "Access-Control-Allow-Credentials" not in headers
    assert headers["Access-Control-Allow-Headers"] == "authorization" and headers["Access-Control-Max-Age"] == "5"
    off = ask(door(GateSettings(cors_origins=())), "POST", "/tokenize", asked).headers
    assert not any(name.startswith("Access-Control") or name == "Vary" for name in off)
