"""JSON bodies: what is taken, and how what is not is named. The checks of fields beyond their types."""

import contextlib
import json
import re
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from api.bodies.checks import check_filename, check_label, check_media_type, check_sha256, check_uuid
from api.bodies.project_files import CreateProjectFileBody, UpdateProjectFileBody
from api.routes import accepts_json
from ca.errors import InvalidRequest, RateLimited, RequestTimeout
from runtime.timestamps import parse_rfc3339, rfc3339
from web.app import decode_json
from web.rate_limits import BodyPace, TokenBuckets


class Body(Struct, forbid_unknown_fields=True, kw_only=True):
    name: str
    size: Annotated[int, Meta(ge=0, le=10)] | None = None
    flag: bool = False
    kind: Literal["a", "b"] | None = None
    tags: list[str] | None = None


REFUSED = [
    (b"", "name: is required"),
    (b"{}", "name: is required"),
    (b"[]", "the body: expected an object, got an array"),
    (b"null", "the body: expected an object, got null"),
    (b'"x"', "the body: expected an object, got a string"),
    (b'{"name":null}', "name: expected a string, got null"),
    (b'{"name":5}', "name: expected a string, got an integer"),
    (b'{"name":"n","size":true}', "size: expected an integer, got a boolean"),
    (b'{"name":"n","size":"5"}', "size: expected an integer, got a string"),
    (b'{"name":"n","size":5.5}', "size: expected an integer, got a number"),
    (b'{"name":"n","size":1e-3}', "size: expected an integer, got a number"),
    (b'{"name":"n","size":1e3}', "size: expected an integer <= 10"),
    (b'{"name":"n","size":1.%s}' % (b"0" * 100), "size: expected an integer, got a number"),
    (b'{"name":"n","size":-1}', "size: expected an integer >= 0"),
    (b'{"name":"n","size":11}', "size: expected an integer <= 10"),
    (b'{"name":"n","size":9223372036854775808}', "size: expected an integer <= 10"),
    (b'{"name":"n","size":' + b"9" * 5000 + b"}", "size: expected an integer <= 10"),
    (b'{"name":"n","size":-' + b"9" * 5000 + b"}", "size: expected an integer >= 0"),
    (b'{"name":"n","size":NaN}', "size: expected an integer, got NaN or Infinity"),
    (b'{"name":"n","size":-Infinity}', "size: expected an integer, got NaN or Infinity"),
    (b'{"name":"n","flag":1}', "flag: expected a boolean, got an integer"),
    (b'{"name":"n","flag":"true"}', "flag: expected a boolean, got a string"),
    (b'{"name":"n","kind":"c"}', "kind: expected one of a, b"),
    (b'{"name":"n","kind":1}', "kind: expected a string, got an integer"),
    (b'{"name":"n","tags":"x"}', "tags: expected an array, got a string"),
    (b'{"name":"n","tags":[1]}', "tags[0]: expected a string, got an integer"),
    (b'{"name":"n","other":1}', "other: unknown field"),
    (b'{"name":"n","Name":"n"}', "Name: unknown field"),
    (b'{"name":"a","name":"b"}', "name: appears more than once"),
    (b'{"name":"\\ud800"}', "name: contains a lone surrogate, which is not valid text"),
    (b'{"name":"n","tags":["\\udfff"]}', "tags: contains a lone surrogate, which is not valid text"),
    (b'"\\ud800"', "the body: expected an object, got a string"),
    (b'{"name":"\xff"}', "The body is not UTF-8."),
    (b"[" * 100_000, "The body is nested too deeply."),
    (b'{"name":' * 100_000, "The body is nested too deeply."),
    (b'{"name":"n"', "The body is not JSON: Expecting ',' delimiter at character 11."),
    (b"[1 2]", "The body is not JSON: Expecting ',' delimiter at character 3."),
    (b'{"name":"n"}{}', "The body is not JSON: Extra data at character 12."),
    (b'{"name":"a\nb"}', "The body is not JSON: Invalid control character at at character 10."),
]


@pytest.mark.parametrize(("data", "details"), REFUSED, ids=[details[:40] for _, details in REFUSED])
def test_refused_body_is_named(data: bytes, details: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_json(data, Body)
    assert caught.value.details == details


MANY = b",".join([b'{"":0}'] * 140_000)  # most of a MiB
HOSTILE = [
    (b"[" + MANY + b"]", "the body: expected an object, got an array"),
    (b'{"name":"n","tags":[' + MANY + b"]}", "The body has more than 131072 bytes outside of its texts."),
    (b'{"name":"n","tags":[' + MANY, "The body is not JSON."),
    (b'{"name":"n","tags":' + b"[" * 1_000_000, "The body is nested too deeply."),
]


@pytest.mark.parametrize(("data", "details"), HOSTILE, ids=[details[:40] for _, details in HOSTILE])
def test_body_that_would_take_long_to_parse_is_refused_before(data: bytes, details: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_json(data, Body)
    assert caught.value.details == details  # the parser would find other faults


def test_long_text_is_taken_whatever_is_in_it() -> None:
    text = '{"a":[{}]},' * 50_000
    assert decode_json(json.dumps({"name": text}).encode() + b" " * 200_000, Body) == Body(name=text)


def test_null_and_empty_text_of_an_optional_field_mean_absent() -> None:
    for nothing in (b"null", b'""'):
        fields = b",".join(b'"%s":%s' % (name, nothing) for name in (b"size", b"flag", b"kind", b"tags"))
        assert decode_json(b'{"name":"",%s}' % fields, Body) == Body(name="")


def test_no_body_stands_for_an_empty_object_without_required_fields() -> None:
    assert decode_json(b"", UpdateProjectFileBody) == UpdateProjectFileBody()
    with pytest.raises(InvalidRequest, match="not JSON"):
        decode_json(b" \r\n", UpdateProjectFileBody)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_body_or_an_invalid_request(data: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        assert isinstance(decode_json(data, Body), Body)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["name", "size", "flag", "kind", "tags", "other"])


@given(st.dictionaries(NAMES, VALUES))
def test_any_json_is_a_body_of_right_types_or_names_a_field(value: dict[str, Any]) -> None:
    body, details = None, ""
    try:
        body = decode_json(json.dumps(value).encode(), Body)
    except InvalidRequest as error:
        details = error.details
    if body is None:
        assert re.match(
            r"(name|size|flag|kind|tags|other)\b.*: |[^:]{0,64}: contains a lone surrogate", details
        )
    else:
        assert type(body.name) is str
        assert body.size is None or type(body.size) is int
        assert type(body.flag) is bool


def test_create_body_has_the_defaults_of_the_interface() -> None:
    sent = b'{"filename":"f","project_id":"p","bucket_id":"","size_bytes":null}'
    body = decode_json(sent, CreateProjectFileBody)
    assert body.bucket_id == "00000000-0000-0000-0000-000000000000"
    assert (body.content_type, body.compression) == ("application/octet-stream", "none")
    assert (body.size_bytes, body.retention_period, body.include_images) == (None, None, False)


@pytest.mark.parametrize("name", ["a\x00b", "a\nb", "a\r\nb", "\x7f", "\x85", "a\u2028b"])
def test_control_characters_are_refused_in_labels(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^filename: "):
        check_filename(name)
    with pytest.raises(InvalidRequest, match=r"^version_tag: "):
        check_label(name, "version_tag")


@pytest.mark.parametrize("name", ["..", "%2e%2e%2f", 'a"b', "\u202egpj.exe", "ü" * 255, " "])
def test_filename_is_a_label_not_a_path(name: str) -> None:
    assert check_filename(name) == name
    with pytest.raises(InvalidRequest, match=r"^filename: "):
        check_filename(name + "/x")


@pytest.mark.parametrize("text", ["a/b", "text/plain; charset=utf-8", 'a/b;x="y z"', "application/vnd.x+zip"])
def test_media_types_are_taken(text: str) -> None:
    assert check_media_type(text) == text


@pytest.mark.parametrize(
    "text", ["a", "a/", "/b", "a/b\r\nX: y", "a/b;", "a /b", "ä/b", 'a/b;x="\r\n"', "a/b\n"]
)
def test_other_media_types_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^content_type: "):
        check_media_type(text)


def test_ids_and_digests_come_out_in_lower_case() -> None:
    assert check_uuid("0190A1B2-C3D4-7E5F-8091-A2B3C4D5E6F7", "bucket_id").islower()
    assert check_sha256("AB" * 32) == "ab" * 32
    assert check_sha256("") == ""
    for bad in ("x", "0190a1b2c3d47e5f8091a2b3c4d5e6f7", "{0190a1b2-c3d4-7e5f-8091-a2b3c4d5e6f7}"):
        with pytest.raises(InvalidRequest, match=r"^bucket_id: "):
            check_uuid(bad, "bucket_id")
        with pytest.raises(InvalidRequest, match=r"^blob_sha256: "):
            check_sha256(bad)


@pytest.mark.parametrize(
    ("accept", "taken"),
    [
        ("", True), ("*/*", True), ("application/json", True), ("application/*;q=0.1", True),
        ("text/html", False), ("text/html, */*;q=0.1", True), ("application/json;q=0, */*", False),
        ("text/html,application/xml", False), ("APPLICATION/JSON", True), ("*/*;q=0.000", False),
        (";;,,", False),
    ],
)  # fmt: skip
def test_accept_decides_by_its_most_specific_range(accept: str, taken: bool) -> None:
    assert accepts_json(accept) is taken


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2026-11-20T12:00:00.000Z", 1_795_176_000_000),
        ("2026-11-20t14:30:00+02:30", 1_795_176_000_000),
        ("2026-11-20 12:00:00.1239z", 1_795_176_000_123),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000),
        ("2026-11-20T12:00:00.00000000000000000001Z", 1_795_176_000_000),
    ],
)
def test_rfc3339_times_are_read(text: str, at_ms: int) -> None:
    assert parse_rfc3339(text, "expires_at") == at_ms


@pytest.mark.parametrize(
    "text",
    [
        "", "2026-11-20", "2026-11-20T12:00:00", "2026-02-30T12:00:00Z", "2026-11-20T24:00:00Z",
        "0000-01-01T00:00:00Z", "9999-12-31T23:59:60Z", "2026-11-20T12:00:00+24:00", "1969-12-31T23:59:59Z",
        "２026-11-20T12:00:00Z",
        "2026-11-20T12:00:00Z\n", "0001-01-01T00:00:00+23:59",
    ],
)  # fmt: skip
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^expires_at: "):
        parse_rfc3339(text, "expires_at")


@given(st.integers(min_value=1, max_value=253_402_300_799_999))
def test_written_times_read_back(at_ms: int) -> None:
    assert parse_rfc3339(rfc3339(at_ms), "at") == at_ms


def test_time_that_is_not_set_is_empty() -> None:
    assert rfc3339(0) == rfc3339(None) == ""


def test_bucket_lets_a_burst_through_and_then_the_rate() -> None:
    now_s = [0.0]
    buckets = TokenBuckets(burst=3, per_s=0.5, clock_s=lambda: now_s[0])
    for _ in range(3):
        buckets.take("192.0.2.1")
    with pytest.raises(RateLimited) as caught:
        buckets.take("192.0.2.1")
    assert caught.value.headers == {"Retry-After": "2"}
    buckets.take("192.0.2.2")
    now_s[0] = 2.0
    buckets.take("192.0.2.1")


def test_addresses_of_one_network_share_a_bucket_and_the_table_is_bounded() -> None:
    buckets = TokenBuckets(burst=1, per_s=1.0, addresses_max=10, clock_s=lambda: 0.0)
    buckets.take("2001:db8::1")
    assert buckets.try_take("2001:db8::ffff:1") > 0
    buckets.take("::ffff:192.0.2.1")
    assert buckets.try_take("192.0.2.1") > 0
    for n in range(100):
        buckets.take(f"198.51.100.{n}")
    assert len(buckets) == 10


def test_body_pace_counts_waiting_only() -> None:
    pace = BodyPace(10.0)
    pace.note_arrival(10 * 1024, waited_s=10.0)
    pace.note_arrival(5, waited_s=9.0)
    assert pace.left_s == pytest.approx(1.0)
    with pytest.raises(RequestTimeout):
        pace.note_arrival(0, waited_s=1.0)
