"""The errors of the client: those of the API, one class for each code, whatever the body of an answer is."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import filestore_client.base.errors as client_errors
from api.spec.openapi import document
from ca import errors as server_errors
from filestore_client.base.errors import (
    CATALOGUE,
    FilestoreError,
    Internal,
    NotFound,
    OffsetMismatch,
    RangeNotSatisfiable,
    Unavailable,
    error_of,
)

OF_THE_CLIENT = {"untrusted_server", "file_changed"}  # what no server answers
PATH = "/api/v1/files/f"


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_there_is_one_class_for_each_error_of_the_api() -> None:
    codes = [(kind.code, kind.status) for kind in CATALOGUE]
    assert sorted(codes) == sorted((kind.code, kind.status) for kind in server_errors.CATALOGUE)
    assert len(set(CATALOGUE)) == len(CATALOGUE)


def test_codes_are_those_of_the_openapi_document() -> None:
    described = document([])["components"]
    assert {kind.code for kind in CATALOGUE} == set(described["responses"])
    assert (
        sorted(kind.code for kind in CATALOGUE) == described["schemas"]["Error"]["properties"]["code"]["enum"]
    )


def test_every_class_is_in_the_catalogue_or_of_the_client_alone() -> None:
    kinds = [
        kind
        for kind in vars(client_errors).values()
        if isinstance(kind, type) and issubclass(kind, FilestoreError) and kind is not FilestoreError
    ]
    assert {kind.code for kind in kinds if kind not in CATALOGUE} == OF_THE_CLIENT
    assert {kind.code for kind in CATALOGUE}.isdisjoint(OF_THE_CLIENT)


@pytest.mark.parametrize("kind", CATALOGUE, ids=lambda kind: kind.code)
def test_answer_of_a_code_is_its_class_with_its_details(kind: type[FilestoreError]) -> None:
    found = error_of(kind.status, {}, body(code=kind.code, error="Title", details="Why."), PATH)
    assert type(found) is kind
    assert (found.code, found.status, found.details, str(found)) == (kind.code, kind.status, "Why.", "Why.")


@pytest.mark.parametrize("kind", CATALOGUE, ids=lambda kind: kind.code)
def test_answer_without_a_body_is_of_its_status(kind: type[FilestoreError]) -> None:
    found = error_of(kind.status, {}, b"", PATH)
    assert found.status == kind.status
    assert found.details == f"{PATH}: the server answered {kind.status}"


def test_facts_in_headers_are_told() -> None:
    offset = error_of(409, {"Upload-Offset": "12"}, body(code="offset_mismatch", details="d"), PATH)
    assert isinstance(offset, OffsetMismatch)
    assert offset.offset == 12
    size = error_of(416, {"Content-Range": "bytes */34"}, body(code="range_not_satisfiable"), PATH)
    assert isinstance(size, RangeNotSatisfiable)
    assert size.size_bytes == 34


@pytest.mark.parametrize("number", ["", "-1", "x", "1.5", "٣", "9" * 5000, " 1", "bytes */*"])
def test_number_that_is_none_counts_as_0(number: str) -> None:
    offset = error_of(409, {"Upload-Offset": number}, body(code="offset_mismatch"), PATH)
    assert isinstance(offset, OffsetMismatch)
    assert offset.offset == 0
    size = error_of(416, {"Content-Range": number}, b"", PATH)
    assert isinstance(size, RangeNotSatisfiable)
    assert size.size_bytes == 0


@pytest.mark.parametrize(
    "hostile",
    [
        b"<html>Bad Gateway</html>",
        b"null",
        b"[]",
        b'"not_found"',
        b"{",
        b"[" * 100_000,
        b'{"code":' * 100_000,
        b"\xff\xfe",
        b'{"code":"\xff"}',
        b'{"code":"\\ud800"}',
        body(code=5, details="d"),
        body(code=None, details=None),
        body(code=["not_found"]),
        body(code={"not_found": 1}),
        body(code="__class__", details=""),
        b'{"code":"unheard_of"}',
    ],
    ids=lambda hostile: repr(hostile[:20]),
)
def test_body_that_is_no_error_is_one_of_the_status(hostile: bytes) -> None:
    found = error_of(404, {}, hostile, PATH)
    assert type(found) is NotFound
    assert found.details == f"{PATH}: the server answered 404"


def test_what_a_newer_server_adds_hides_nothing() -> None:
    found = error_of(503, {}, body(code="unavailable", details="d", retry_after_s=3, causes=[{}]), PATH)
    assert isinstance(found, Unavailable)
    assert (found.details, found.is_unknown) == ("d", False)
    newer = error_of(409, {}, body(code="of_next_year", details="d"), PATH)
    assert (newer.status, newer.details) == (409, "d")


@pytest.mark.parametrize("status", [418, 502, 504, 599, 999])
def test_status_that_is_not_known_is_an_internal_error(status: int) -> None:
    assert type(error_of(status, {}, b"", PATH)) is Internal


@given(
    status=st.integers(400, 599),
    headers=st.dictionaries(st.sampled_from(["Upload-Offset", "Content-Range"]), st.text()),
    hostile=st.binary()
    | st.dictionaries(
        st.sampled_from(["code", "details", "error"]), st.text() | st.integers() | st.none()
    ).map(lambda fields: json.dumps(fields).encode()),
)
def test_any_answer_is_an_error_with_details(status: int, headers: dict[str, str], hostile: bytes) -> None:
    found = error_of(status, headers, hostile, PATH)
    assert isinstance(found, FilestoreError)
    assert found.details
