"""Preconditions in their order, dates in all three forms, and names of downloads that cannot do harm."""

import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from ca.errors import PreconditionFailed
from web.headers import conditions
from web.headers.conditions import (
    Outcome,
    content_disposition,
    evaluate,
    http_date,
    if_range_matches,
    parse_http_date,
)

ETAG = '"' + "ab" * 32 + '"'
OTHER = '"' + "cd" * 32 + '"'
MODIFIED_AT_MS = 784_111_777_999  # 999 ms past the second that HTTP can show
DATE = "Sun, 06 Nov 1994 08:49:37 GMT"
EARLIER = "Sun, 06 Nov 1994 08:49:36 GMT"
LATER = "Sun, 06 Nov 1994 08:49:38 GMT"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"If-Match": ETAG},
        {"If-Match": "*"},
        {"If-Match": f"{OTHER} , {ETAG}"},
        {"If-Match": ETAG, "If-Unmodified-Since": EARLIER},
        {"If-Unmodified-Since": DATE},
        {"If-Unmodified-Since": "yesterday"},
        {"If-None-Match": OTHER},
        {"If-None-Match": OTHER, "If-Modified-Since": LATER},
        {"If-None-Match": "no quotes"},
        {"If-Modified-Since": EARLIER},
        {"If-Modified-Since": "soon"},
    ],
)
def test_conditions_that_hold_let_the_download_proceed(headers: dict[str, str]) -> None:
    assert evaluate("GET", headers, ETAG, MODIFIED_AT_MS) is Outcome.PROCEED


@pytest.mark.parametrize(
    "headers",
    [
        {"If-None-Match": ETAG},
        {"If-None-Match": "*"},
        {"If-None-Match": f"W/{ETAG}"},
        {"If-None-Match": f'"a,b", {ETAG}'},
        {"If-None-Match": ETAG, "If-Modified-Since": EARLIER},
        {"If-Match": ETAG, "If-None-Match": ETAG},
        {"If-Modified-Since": DATE},
        {"If-Modified-Since": LATER},
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_content_that_the_client_has_is_not_sent(method: str, headers: dict[str, str]) -> None:
    assert evaluate(method, headers, ETAG, MODIFIED_AT_MS) is Outcome.NOT_MODIFIED


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {"If-Match": OTHER}),
        ("GET", {"If-Match": f"W/{ETAG}"}),
        ("GET", {"If-Match": ""}),
        ("GET", {"If-Match": "garbage"}),
        ("GET", {"If-Match": OTHER, "If-None-Match": ETAG}),
        ("GET", {"If-Unmodified-Since": EARLIER}),
        ("PUT", {"If-None-Match": "*"}),
        ("DELETE", {"If-None-Match": ETAG}),
    ],
)
def test_condition_that_fails_stops_the_request(method: str, headers: dict[str, str]) -> None:
    with pytest.raises(PreconditionFailed):
        evaluate(method, headers, ETAG, MODIFIED_AT_MS)


def test_modified_since_means_nothing_for_methods_that_write() -> None:
    assert evaluate("DELETE", {"If-Modified-Since": LATER}, ETAG, MODIFIED_AT_MS) is Outcome.PROCEED


def test_repeated_lines_are_one_list_and_names_ignore_case() -> None:
    headers = CIMultiDict([("if-none-match", OTHER), ("IF-NONE-MATCH", ETAG)])
    assert evaluate("GET", headers, ETAG, MODIFIED_AT_MS) is Outcome.NOT_MODIFIED


def test_list_of_tags_of_any_length_is_read_in_a_moment() -> None:
    assert evaluate("GET", {"If-None-Match": ", ".join([OTHER] * 100_000)}, ETAG, 0) is Outcome.PROCEED
    assert evaluate("GET", {"If-None-Match": "W/" * 4000}, ETAG, 0) is Outcome.PROCEED
    assert not conditions._TAG.match(" " * 1_000_000 + "x")  # hours, if its time grew with the square


@given(st.text(alphabet='"W/*, \t\nab\x80', max_size=20))
def test_no_list_of_tags_makes_the_parser_fail(header: str) -> None:
    headers = {"If-None-Match": header}
    expected = Outcome.NOT_MODIFIED if header.strip(" \t") == "*" else Outcome.PROCEED
    assert evaluate("GET", headers, ETAG, MODIFIED_AT_MS) is expected


@pytest.mark.parametrize(
    ("header", "holds"),
    [
        (None, True),
        (ETAG, True),
        (f" {ETAG} ", True),
        (OTHER, False),
        (f"W/{ETAG}", False),
        (DATE, True),
        (EARLIER, False),
        (LATER, False),
        ("garbage", False),
        ("", False),
        ("*", False),
    ],
)
def test_if_range_holds_only_for_exactly_this_content(header: str | None, holds: bool) -> None:
    assert if_range_matches(header, ETAG, MODIFIED_AT_MS) is holds


@pytest.mark.parametrize("value", [DATE, "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"])
def test_all_three_forms_of_a_date_are_read(value: str) -> None:
    assert parse_http_date(value) == 784_111_777


@pytest.mark.parametrize(
    "value",
    [
        "",
        "0",
        "Sun, 06 Nov 1994 08:49:37 CET",
        "Sun, 31 Feb 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 25:49:37 GMT",
        "Sun, 06 Nov 99999999 08:49:37 GMT",
        "1994-11-06T08:49:37Z",
        "Sun, 06 Nov 0000 08:49:37 GMT",
    ],
)
def test_what_is_no_http_date_has_no_time(value: str) -> None:
    assert parse_http_date(value) is None


def test_http_date_drops_what_http_cannot_say() -> None:
    assert http_date(MODIFIED_AT_MS) == DATE


@given(st.integers(0, 4_000_000_000))
def test_dates_that_are_written_are_read_back(at_s: int) -> None:
    assert parse_http_date(http_date(at_s * 1000)) == at_s


def test_plain_name_is_sent_in_both_forms() -> None:
    assert content_disposition("disk.img") == "attachment; filename=\"disk.img\"; filename*=UTF-8''disk.img"


def test_other_scripts_are_sent_as_utf8() -> None:
    assert content_disposition("Größe €.img") == (
        "attachment; filename=\"Gr__e _.img\"; filename*=UTF-8''Gr%C3%B6%C3%9Fe%20%E2%82%AC.img"
    )


@pytest.mark.parametrize(
    "name",
    [
        'a"; filename="b',
        "a\r\nSet-Cookie: x=1",
        "a\\",
        "\x00\x7f",
        "..\u202egpj.exe",
        "\u2066x\u2069",
        "a/../b",
        "a\u2028b",
        "\ud800",
        "%41",
        "",
        "\u200fx",
    ],
)
def test_name_cannot_leave_its_quotes_or_turn_around(name: str) -> None:
    value = content_disposition(name)
    plain, extended = r"[ !#$&-\[\]-~]+", r"[A-Za-z0-9!#$&+.^_`|~%-]+"
    assert re.fullmatch(rf"attachment; filename=\"{plain}\"; filename\*=UTF-8''{extended}", value)
    assert not set(unquote(value)) & set("\r\n\0\u202e\u2066\u2069\u2028\u200f")


@given(st.text(max_size=300))
def test_every_name_gives_one_safe_ascii_header(name: str) -> None:
    value = content_disposition(name)
    assert value.isascii()
    assert value.isprintable()
    assert value.count('"') == 2
    assert len(unquote(value.partition("''")[2])) <= 255
