"""The route table: exact paths, decoded once, no spelling that goes around it."""

from __future__ import annotations

import random

import pytest

from imp.http.errors import ApiError
from imp.http.message import Full, HttpRequest, Response
from imp.http.router import Access, Route, Router, with_aliases


async def nothing(request: HttpRequest) -> Response:
    return Full(200)


def table() -> Router:
    return Router(
        with_aliases(
            [
                Route(("GET",), "/", nothing, Access.OPEN),
                Route(("GET", "POST"), "/ping", nothing, Access.OPEN),
                Route(("POST",), "/v1/chat/completions", nothing, generates=True),
                Route(("POST",), "/v1/messages", nothing),
                Route(("GET",), "/v1/models", nothing),
                Route(("GET",), "/v1/models/{id}", nothing),
                Route(("GET",), "/v1/responses/{id}", nothing),
                Route(("DELETE",), "/v1/responses/{id}", nothing),
                Route(("POST",), "/v1/responses/{id}/cancel", nothing),
                Route(("POST",), "/v1/rerank", nothing),
                Route(("POST",), "/rerank", nothing, Access.ADMIN),
            ]
        )
    )


@pytest.mark.parametrize(
    ("method", "path", "pattern", "params"),
    [
        ("GET", "/", "/", {}),
        ("HEAD", "/", "/", {}),
        ("HEAD", "/v1/models/x", "/v1/models/{id}", {"id": "x"}),
        ("POST", "/v1/chat/completions", "/v1/chat/completions", {}),
        ("POST", "/v1/chat/%63ompletions", "/v1/chat/completions", {}),
        ("GET", "/v1/models/a%2Fb", "/v1/models/{id}", {"id": "a/b"}),
        ("GET", "/v1/models/a%252Fb", "/v1/models/{id}", {"id": "a%2Fb"}),
        ("GET", "/v1/models/%E2%82%AC", "/v1/models/{id}", {"id": "€"}),
        ("GET", "/v1/responses/r", "/v1/responses/{id}", {"id": "r"}),
        ("DELETE", "/v1/responses/r", "/v1/responses/{id}", {"id": "r"}),
        ("POST", "/v1/responses/r/cancel", "/v1/responses/{id}/cancel", {"id": "r"}),
        ("POST", "/chat/completions", "/chat/completions", {}),
        ("GET", "/models/m", "/models/{id}", {"id": "m"}),
    ],
)
def test_found(method: str, path: str, pattern: str, params: dict[str, str]) -> None:
    match = table().find(method, path)
    assert match.route.pattern == pattern and match.params == params


@pytest.mark.parametrize(
    "path",
    [
        *(
            "",
            "x",
            "*",
            "//",
            "/v1",
            "/v1/",
            "/v1/models/",
            "//v1/models",
            "/v1//models",
            "/V1/models",
            "/v1/models/x/",
        ),
        *("/v1/models/..", "/v1/models/%2e%2e", "/v1/models/.", "/v1/x/../models", "/v1%2Fmodels", "/%2fv1/models"),
        *("/v1/chat%2Fcompletions", "/v1/chat/completions/", "/v1/chat/completions;a", "/messages", "/v1/models/a/b"),
        "/v1/responses//cancel",
    ],
)
def test_other_spellings_are_404(path: str) -> None:
    # G10-02: trailing slash, //, /V1/, %2e
    for method in ("GET", "POST", "HEAD"):
        with pytest.raises(ApiError) as caught:
            table().find(method, path)
        assert caught.value.status == 404


@pytest.mark.parametrize(
    "path", ["/v1/models/%", "/v1/models/%zz", "/v1/models/%ff", "/v1/models/%00", "/v1/models/a%0Ab"]
)
def test_broken_escapes_are_400(path: str) -> None:
    with pytest.raises(ApiError) as caught:
        table().find("GET", path)
    assert caught.value.status == 400


def test_a_wrong_method_is_405_with_allow() -> None:
    for method, path, allow in [
        ("GET", "/v1/chat/completions", "OPTIONS, POST"),
        ("PUT", "/ping", "GET, HEAD, OPTIONS, POST"),
        ("PATCH", "/v1/responses/r", "DELETE, GET, HEAD, OPTIONS"),
        ("get", "/v1/models", "GET, HEAD, OPTIONS"),
    ]:
        with pytest.raises(ApiError) as caught:
            table().find(method, path)
        assert caught.value.status == 405 and caught.value.headers["Allow"] == allow


def test_an_alias_never_replaces_a_route() -> None:
    assert table().find("POST", "/rerank").route.access is Access.ADMIN


def test_random_paths_find_only_the_table_seed_5() -> None:
    random_ = random.Random(5)
    router = table()
    parts = [
        "/",
        "//",
        "v1",
        "models",
        "chat",
        "completions",
        "%2e",
        "..",
        ".",
        "%2F",
        "%",
        "%00",
        "a",
        "{id}",
        "ping",
        "?",
    ]
    for _ in range(5000):
        path = "".join(random_.choice(parts) for _ in range(random_.randint(0, 7)))
        try:
            match = router.find("GET", path)
        except ApiError as error:
            assert error.status in (400, 404, 405)
        else:
            assert match.route in router.routes
            assert not {"", ".", ".."} & set(match.params.values())
