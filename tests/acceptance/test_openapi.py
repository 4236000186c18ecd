"""Schemathesis over every route of /openapi.json, long: no 5xx, no answer that the description does not promise."""

from __future__ import annotations

import time

import httpx

from tests.clients.test_openapi import Site, ask


def test_two_hundred_valid_and_invalid_requests_a_route() -> None:
    site = Site()
    document = httpx.get(f"{site.url}/openapi.json").json()
    began = time.monotonic()
    total = 0
    for seed in (1, 2):
        total += sum(ask(site, document, 100, seed).values())
    print(f"\n{total} requests to {len(document['paths'])} paths in {time.monotonic() - began:.0f} s")
    site.close()
    assert total > 5000
