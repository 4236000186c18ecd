"""How much one client may ask for a minute: token buckets for requests and for tokens. The clock is handed in."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping

from imp.http.errors import too_many

MAX_BUCKETS = 10_000  # clients remembered; the longest unseen is forgotten first


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


class Rates:
    """The buckets of everybody seen lately. Limits are per minute; 0: none."""

    def __init__(self, requests: int, tokens: int) -> None:
        self._limits = {unit: limit for unit, limit in (("requests", requests), ("tokens", tokens)) if limit}
        self._buckets: dict[str, OrderedDict[str, TokenBucket]] = {unit: OrderedDict() for unit in self._limits}

    @property
    def any(self) -> bool:
        return bool(self._limits)

    def charge(self, who: str, now: float) -> dict[str, str]:
        """Count one request; returns the x-ratelimit headers of its response. ApiError 429 with Retry-After."""
        buckets = {unit: self._bucket(unit, who, now) for unit in self._limits}
        wait_s = max((bucket.wait_s(1, now) for bucket in buckets.values()), default=0.0)
        if not wait_s and "requests" in buckets:
            buckets["requests"].spend(1, now)
        headers = {name: value for unit in buckets for name, value in _headers(unit, buckets[unit], now).items()}
        if wait_s:
            error = too_many("rate_limit_exceeded", "Too many requests; see Retry-After.", math.ceil(wait_s))
            error.headers |= headers
            raise error
        return headers

    def charge_tokens(self, who: str, count: int, now: float) -> None:
        if "tokens" in self._limits:
            self._bucket("tokens", who, now).spend(count, now)

    def known(self, unit: str) -> int:
        """How many clients are remembered."""
        return len(self._buckets[unit])

    def _bucket(self, unit: str, who: str, now: float) -> TokenBucket:
        buckets = self._buckets[unit]
        bucket = buckets.get(who)
        if bucket is None:
            bucket = buckets[who] = TokenBucket(self._limits[unit], now)
            if len(buckets) > MAX_BUCKETS:
                buckets.popitem(last=False)
        buckets.move_to_end(who)
        return bucket


def tighter(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """The headers of two limits as one: of each unit those of the limit that has less left."""
    merged = dict(other)
    for unit in ("requests", "tokens"):
        left = f"x-ratelimit-remaining-{unit}"
        if left in one and (left not in other or int(one[left]) < int(other[left])):
            merged |= {name: value for name, value in one.items() if name.endswith(unit)}
    return merged


def _headers(unit: str, bucket: TokenBucket, now: float) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{unit}": str(bucket.per_minute),
        f"x-ratelimit-remaining-{unit}": str(max(0, math.floor(bucket.level(now)))),
        f"x-ratelimit-reset-{unit}": f"{math.ceil(bucket.wait_s(bucket.per_minute, now))}s",
    }
