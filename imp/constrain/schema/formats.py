"""The formats that are enforced, each as a regular language, from the RFCs that JSON Schema names for them.

Other names of formats are annotations, as the specification has it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ..errors import Code, ConstraintError
from ..language import Language

Maker = Callable[[str], Language]  # from the pointer of the schema, for what is refused

# RFC 3339, full-date: months of 30 and 31 days, and 29 February in leap years alone
LEAP = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
LONG = r"(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
SHORT = r"(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])"
DATE = rf"(?:[0-9]{{4}}-(?:{LONG}|{SHORT})|{LEAP}-02-29)"
CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
FRACTION = r"(?:\.[0-9]{1,18})?"
OFFSET = r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
# ISO 8601 as in RFC 3339, appendix A
CLOCKED = r"T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
DATED = r"(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
DURATION = rf"P(?:{DATED}(?:{CLOCKED})?|{CLOCKED}|[0-9]+W)"
# RFC 1123: labels of up to 63 letters, digits and inner hyphens
LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
HOSTNAME = rf"{LABEL}(?:\.{LABEL})*"
OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
IPV4 = rf"{OCTET}(?:\.{OCTET}){{3}}"
ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
QUOTED_PAIRS = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
# RFC 3986
UNRESERVED = r"A-Za-z0-9._~\-"
DELIMITERS = r"!$&'()*+,;="
ESCAPED = r"%[0-9A-Fa-f]{2}"
UUID = r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
# RFC 3987: what an IRI has beyond a URI
UCS = (
    r"\u{A0}-\u{D7FF}\u{F900}-\u{FDCF}\u{FDF0}-\u{FFEF}"
    + "".join(rf"\u{{{plane:X}0000}}-\u{{{plane:X}FFFD}}" for plane in range(1, 14))
    + r"\u{E1000}-\u{EFFFD}"
)
PRIVATE = r"\u{E000}-\u{F8FF}\u{F0000}-\u{FFFFD}\u{100000}-\u{10FFFD}"
BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"


def _ipv6() -> str:
    """RFC 4291: eight groups, or fewer with one `::`; the last two may be an IPv4 address."""
    group = r"[0-9A-Fa-f]{1,4}"
    last = rf"(?:{group}:{group}|{IPV4})"
    forms = [rf"(?:{group}:){{6}}{last}"]
    for before in range(8):
        head = rf"{group}(?::{group}){{{before - 1}}}" if before else ""
        left = 7 - before  # groups that may follow; `::` stands for one at least
        forms.append(head + "::")
        if left >= 1:
            forms.append(rf"{head}::{group}(?::{group}){{0,{left - 1}}}")
        if left >= 2:
            forms.append(rf"{head}::(?:{group}:){{0,{left - 2}}}{IPV4}")
    return "(?:" + "|".join(forms) + ")"


def _uri(more: str, private: str, relative: bool) -> str:
    """RFC 3986 with `more` unreserved characters and `private` ones in the query; or also a relative reference."""
    char = rf"(?:[{UNRESERVED}{more}{DELIMITERS}:@]|{ESCAPED})"
    address = rf"\[(?:{_ipv6()}|[Vv][0-9A-Fa-f]+\.[{UNRESERVED}{DELIMITERS}:]+)\]"
    host = rf"(?:{address}|(?:[{UNRESERVED}{more}{DELIMITERS}]|{ESCAPED})*)"
    user = rf"(?:(?:[{UNRESERVED}{more}{DELIMITERS}:]|{ESCAPED})*@)?"
    authority = rf"//{user}{host}(?::[0-9]*)?(?:/{char}*)*"
    rootless = rf"/(?:{char}+(?:/{char}*)*)?|{char}+(?:/{char}*)*"
    tail = rf"(?:\?(?:{char}|[/?{private}])*)?(?:#(?:{char}|[/?])*)?"
    absolute = rf"[A-Za-z][A-Za-z0-9+.-]*:(?:{authority}|{rootless})?{tail}"
    if not relative:
        return absolute
    first = rf"(?:[{UNRESERVED}{more}{DELIMITERS}@]|{ESCAPED})+"  # no colon before the first slash
    noscheme = rf"/(?:{char}+(?:/{char}*)*)?|{first}(?:/{char}*)*"
    return rf"(?:{absolute}|(?:{authority}|{noscheme})?{tail})"


def _uri_template() -> str:
    """RFC 6570."""
    name = rf"(?:[A-Za-z0-9_]|{ESCAPED})(?:\.?(?:[A-Za-z0-9_]|{ESCAPED}))*"
    variable = rf"{name}(?::[1-9][0-9]{{0,3}}|\*)?"
    literal = rf"(?:[!#$&-;=?-\[\]_a-z~{UCS}{PRIVATE}]|{ESCAPED})"
    return rf"(?:{literal}|\{{[+#./;?&=,!@|]?{variable}(?:,{variable})*\}})*"


def _pattern(regex: str) -> Maker:
    return lambda where: Language.pattern(regex, search=False)


def _email(where: str) -> Language:
    """RFC 5321: a dot-atom or quoted local part of up to 64 characters; a host name or an address in brackets."""
    address = rf"\[(?:{IPV4}|IPv6:{_ipv6()})\]"
    return Language.pattern(rf"(?:{ATOM}(?:\.{ATOM})*|{QUOTED_PAIRS})@(?:{HOSTNAME}|{address})", search=False)


def _time(where: str) -> Language:
    """RFC 3339, full-time. Leap seconds are written in UTC alone."""
    return Language.pattern(rf"(?:{CLOCK}{FRACTION}{OFFSET}|{_leap_seconds()})", search=False)


def _date_time(where: str) -> Language:
    return Language.pattern(rf"{DATE}[Tt](?:{CLOCK}{FRACTION}{OFFSET}|{_leap_seconds()})", search=False)


def _leap_seconds() -> str:
    return rf"23:59:60{FRACTION}(?:[Zz]|[+-]00:00)"


def _hostname(where: str) -> Language:
    """RFC 1123, without punycode labels: which of those are valid is more than an automaton can know."""
    return Language.pattern(HOSTNAME, search=False) - Language.pattern(r"(?:^|\.)[A-Za-z0-9-]{2}--")


def _regex(where: str) -> Language:
    raise ConstraintError(
        Code.UNSUPPORTED, where, "'format' 'regex' is no regular language: brackets nest", "leave the format out"
    )


FORMATS: dict[str, Maker] = {
    "date": _pattern(DATE),
    "time": _time,
    "date-time": _date_time,
    "duration": _pattern(DURATION),
    "email": _email,
    "hostname": _hostname,
    "ipv4": _pattern(IPV4),
    "ipv6": lambda where: Language.pattern(_ipv6(), search=False),
    "uuid": _pattern(UUID),
    "uri": lambda where: Language.pattern(_uri("", "", relative=False), search=False),
    "uri-reference": lambda where: Language.pattern(_uri("", "", relative=True), search=False),
    "iri": lambda where: Language.pattern(_uri(UCS, PRIVATE, relative=False), search=False),
    "iri-reference": lambda where: Language.pattern(_uri(UCS, PRIVATE, relative=True), search=False),
    "uri-template": lambda where: Language.pattern(_uri_template(), search=False),
    "json-pointer": _pattern(r"(?:/(?:[^~/]|~[01])*)*"),
    "relative-json-pointer": _pattern(r"(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^~/]|~[01])*)*)"),
    "byte": _pattern(BASE64),
    "base64": _pattern(BASE64),
    "regex": _regex,
}


@cache
def _made(name: str) -> Language:
    return FORMATS[name]("")


def language_of(name: str, where: str) -> Language:
    """The language of a known format, made once. where: the pointer of the schema, for errors."""
    return FORMATS[name](where) if name == "regex" else _made(name)


def warm() -> None:
    """Make all of them now; a third of a second."""
    for name in FORMATS.keys() - {"regex"}:
        _made(name)


MAX_LENGTHS = {"hostname": 253}
