"""Formats: what the checkers of the `jsonschema` package accept, over written examples and over mutations of them."""

from __future__ import annotations

import calendar
import random

import jsonschema
import pytest

from imp.constrain.schema.formats import FORMATS, MAX_LENGTHS
from tests.constrain.schemas import Writer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER

EXAMPLES = {
    "date": ["2024-02-29", "2023-02-28", "1999-12-31", "2000-02-29", "0001-01-01"],
    "time": ["23:59:59Z", "00:00:00.123+05:30", "12:00:00z", "08:30:06-08:00"],
    "date-time": ["2024-02-29T12:00:00Z", "1990-12-31t15:59:59.5-08:00", "2023-01-01T00:00:00+00:00"],
    "duration": ["P1Y2M3DT4H5M6S", "PT1H", "P3W", "P1D", "P1Y", "PT36H", "P2MT30M"],
    "ipv4": ["0.0.0.0", "192.168.1.255", "8.8.8.8"],
    "ipv6": ["::", "::1", "2001:db8::8a2e:370:7334", "1:2:3:4:5:6:7:8", "::ffff:192.168.0.1", "fe80::1", "1::8", "1:2:3:4:5:6:7::"],
    "uuid": ["2eb8aa08-aa98-11ea-b4aa-73b441d16380", "2EB8AA08-AA98-11EA-B4AA-73B441D16380"],
    "hostname": ["www.example.com", "a", "xn4.host-name.example", "a1-b2.c3", "localhost"],
    "uri": ["http://foo.bar/?baz=qux#quux", "urn:oasis:names:specification", "mailto:a@b.example", "ftp://[::1]:80/x%20y", "http://a:b@c:1/"],
    "uri-reference": ["/abc", "//x/y", "#frag", "a/b?c", "", "http://x/%41"],
    "json-pointer": ["", "/", "/foo/0", "/a~1b/~0", "//"],
    "relative-json-pointer": ["0", "1/a", "12#", "0#", "3/"],
    "uri-template": ["http://x/{id}", "{+path}/here", "{?a,b*}", "{a:3}", "plain"],
}
# their checkers let more through than the RFCs do; the test suite of JSON Schema judges these (test_schema_suites)
LAX = {"duration", "uuid", "hostname", "uri-template"}


def checks(name: str, text: str) -> bool:
    try:
        CHECKER.check(text, name)
    except jsonschema.FormatError:
        return False
    return True


def mutated(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    char = rng.choice("0123456789abzAZ:-./%@[]{}~#?+TZP9 ")
    return rng.choice([text[:at] + char + text[at:], text[:at] + text[at + 1 :], text[:at] + char + text[at + 1 :]])


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_checkers_agree(name):
    writer = Writer({"type": "string", "format": name})
    rng = random.Random(name)
    assert name in CHECKER.checkers
    texts = EXAMPLES[name] + [mutated(rng, rng.choice(EXAMPLES[name])) for _ in range(150)]
    texts += [mutated(rng, text) for text in texts[-60:]]
    for text in texts:
        accepted = writer.accepts_value(text)
        assert accepted <= checks(name, text), (name, text)
        assert accepted >= (text in EXAMPLES[name] or (name not in LAX and checks(name, text))), (name, text)


def test_the_calendar():
    writer = Writer({"type": "string", "format": "date"})
    for year in (1900, 1996, 2000, 2023, 2024, 2100, 2400):
        for month in range(1, 13):
            for day in (28, 29, 30, 31):
                wanted = day <= calendar.monthrange(year, month)[1]
                assert writer.accepts(f'"{year:04}-{month:02}-{day:02}"') == wanted


@pytest.mark.parametrize(("text", "wanted"), [("a@b.example", 1), ("a.b+c@d", 1), ('"a b"@c.d', 1), ("a@[127.0.0.1]", 1), ("a@[IPv6:::1]", 1), ("a..b@c", 0), (".a@b", 0), ("a@", 0), ("a@-b", 0), ("a b@c", 0), ("a@b@c", 0), ("a@[300.0.0.1]", 0)])
def test_email(text, wanted):
    assert Writer({"format": "email"}).accepts_value(text) == bool(wanted)


@pytest.mark.parametrize(("text", "wanted"), [("", 1), ("QQ==", 1), ("QUI=", 1), ("QUJD", 1), ("QUJ", 0), ("Q===", 0), ("QU=D", 0), ("QUJD\n", 0)])
@pytest.mark.parametrize("name", ["byte", "base64"])
def test_base64(name, text, wanted):
    assert Writer({"format": name}).accepts_value(text) == bool(wanted)


@pytest.mark.parametrize(("text", "wanted"), [("http://ƒøø.ßår/?∂éœ=πîx#πîüx", 1), ("/âππ", 0), ("http://a b", 0), ("x:é", 1)])
def test_iri(text, wanted):
    assert Writer({"format": "iri"}).accepts_value(text) == bool(wanted)
    assert Writer({"format": "iri-reference"}).accepts_value(text) == (bool(wanted) or text == "/âππ")


def test_leap_seconds_are_written_in_utc():
    writer = Writer({"format": "date-time"})
    assert writer.accepts('"1998-12-31T23:59:60Z"') and writer.accepts('"1998-12-31T23:59:60+00:00"')
    for text in ("1998-12-31T22:59:60Z", "1998-12-31T23:58:60Z", "1998-12-31T23:59:61Z", "1998-12-31T23:59:60+01:00"):
        assert not writer.accepts(f'"{text}"')


def test_formats_with_patterns_lengths_and_negation():
    writer = Writer({"type": "string", "format": "date", "pattern": "^20", "not": {"pattern": "31$"}})
    assert writer.accepts('"2024-01-30"') and not writer.accepts('"2024-01-31"') and not writer.accepts('"1999-01-30"')
    host = Writer({"format": "hostname"})
    assert MAX_LENGTHS == {"hostname": 253}
    assert host.accepts('"' + ".".join(["a" * 60] * 4) + '"') and not host.accepts('"' + ".".join(["a" * 63] * 4) + '"')
    assert not host.accepts('"xn--x"')


def test_every_format_but_regex_is_a_language():
    for name in FORMATS.keys() - {"regex"}:
        assert not FORMATS[name]("#").is_empty
