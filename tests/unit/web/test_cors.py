"""What pages of other origins are told, and which origins can be configured."""

import pytest
from multidict import CIMultiDict

from ca.errors import InvalidRequest
from web.cors import METHODS, ConsoleMembers, join_vary, origins_of, parse_origins

APP = "https://app.example.org"
ALLOW = "Access-Control-Allow-Origin"


def told(origins: list[str], method: str = "GET", **headers: str) -> dict[str, str]:
    named = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
    return parse_origins(origins).headers(method, named)


def test_without_origins_nothing_is_said() -> None:
    assert told([], Origin=APP) == {}


def test_configured_origin_may_read_answers_and_their_headers() -> None:
    found = told([APP, "http://localhost:3000"], Origin=APP)
    assert (found[ALLOW], found["Vary"]) == (APP, "Origin")
    exposed = found["Access-Control-Expose-Headers"].split(", ")
    assert {"Location", "Upload-Offset", "ETag", "Content-Disposition", "X-Request-Id"} <= set(exposed)
    assert "Access-Control-Allow-Credentials" not in found


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.org",
        "http://app.example.org",
        "https://app.example.org:444",
        "https://app.example.org.evil.org",
        "https://evil.org/https://app.example.org",
        "https://APP.example.org",
        "null",
        "*",
        "",
        f"{APP}, {APP}",
        f"{APP}\r\nX: y",
    ],
)
def test_other_origin_is_told_nothing_but_that_answers_vary(origin: str) -> None:
    assert told([APP], Origin=origin) == {"Vary": "Origin"}
    asked = {"Origin": origin, "Access_Control_Request_Method": "PUT"}
    assert told([APP], "OPTIONS", **asked) == {"Vary": "Origin"}


def test_without_an_origin_answers_vary_all_the_same() -> None:
    assert told([APP]) == {"Vary": "Origin"}


def test_preflight_is_told_methods_and_headers() -> None:
    found = told([APP], "OPTIONS", Origin=APP, Access_Control_Request_Method="PATCH")
    assert found["Access-Control-Allow-Methods"] == METHODS
    allowed = found["Access-Control-Allow-Headers"].lower().split(", ")
    assert {"authorization", "tus-resumable", "upload-offset", "content-type", "upload-metadata"} <= set(
        allowed
    )
    assert "*" not in allowed
    assert found["Access-Control-Max-Age"] == "7200"


def test_request_for_options_that_is_no_preflight_shows_its_headers() -> None:
    found = told([APP], "OPTIONS", Origin=APP)
    assert "Access-Control-Allow-Methods" not in found
    assert "Tus-Resumable" in found["Access-Control-Expose-Headers"]


def test_every_origin_only_where_it_is_configured() -> None:
    assert told(["*"], Origin="https://any.org")[ALLOW] == "*"
    assert "Vary" not in told(["*"], Origin="https://any.org")
    assert told(["*"]) == {}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("https://App.Example.org", APP),
        ("https://app.example.org:443", APP),
        ("http://app.example.org:80", "http://app.example.org"),
        ("http://[::1]:3000", "http://[::1]:3000"),
    ],
)
def test_origin_is_taken_as_browsers_write_it(written: str, meant: str) -> None:
    assert told([written], Origin=meant)[ALLOW] == meant


@pytest.mark.parametrize(
    "text",
    [
        "app.example.org",
        "https://app.example.org/",
        "https://*.example.org",
        "null",
        "",
        "ftp://app.example.org",
        "https://user@app.example.org",
        "https://app.example.org\nX: y",
        "https://äpp.example.org",
        "https://",
    ],
)
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^--cors-origin: "):
        parse_origins([text])


def test_origins_have_a_bound() -> None:
    with pytest.raises(InvalidRequest):
        parse_origins([f"https://a{number}.org" for number in range(65)])


@pytest.mark.parametrize(
    ("own", "both"),
    [("Accept", "Accept, Origin"), ("Origin", "Origin"), ("accept, origin", "accept, origin"), ("*", "*")],
)
def test_what_an_answer_varies_by_is_kept(own: str, both: str) -> None:
    assert join_vary(own, "Origin") == both


def test_pages_of_members_may_read_answers_as_long_as_they_are_members() -> None:
    members = [ConsoleMembers(nodes=("https://10.0.0.2:7443",), coordinators=("https://10.0.0.1:7442",))]
    policy = parse_origins([APP]).with_members(lambda: members[0])
    for origin in ("https://10.0.0.2:7443", "https://10.0.0.1:7442", APP):
        assert policy.headers("GET", CIMultiDict(Origin=origin))[ALLOW] == origin
    for origin in (
        "https://10.0.0.2",
        "http://10.0.0.2:7443",
        "https://10.0.0.2:7444",
        "https://10.0.0.20:7443",
    ):
        assert policy.headers("GET", CIMultiDict(Origin=origin)) == {"Vary": "Origin"}
    members[0] = ConsoleMembers()
    assert policy.headers("GET", CIMultiDict(Origin="https://10.0.0.2:7443")) == {"Vary": "Origin"}


def test_answers_vary_where_only_members_may_read_them() -> None:
    assert parse_origins([]).with_members(ConsoleMembers).varies


def test_origins_of_members_are_as_browsers_write_them() -> None:
    assert origins_of([("10.0.0.2", 7443), ("N2.lab.org", 443), ("2001:db8::1", 7443)]) == (
        "https://10.0.0.2:7443",
        "https://n2.lab.org",
        "https://[2001:db8::1]:7443",
    )
