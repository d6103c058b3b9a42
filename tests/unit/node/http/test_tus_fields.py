"""The header fields of a creation by tus: every text is read, or refused by the name of its header."""

import base64
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from ca.errors import InvalidRequest, PayloadTooLarge
from node.http.ranges import SIZE_BYTES_MAX
from node.http.tus_fields import declared_length, parse_metadata


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def metadata(field: str) -> dict[str, str]:
    return parse_metadata({"Upload-Metadata": field})


def test_metadata_are_texts_by_their_keys() -> None:
    assert parse_metadata({}) == metadata("") == metadata("  ") == {}
    pairs = f"filename {encoded('ü.zip')},empty,also , is_x {encoded('true')}"
    assert metadata(pairs) == {"filename": "ü.zip", "empty": "", "also": "", "is_x": "true"}
    lines = CIMultiDict([("Upload-Metadata", f"a {encoded('1')}"), ("upload-metadata", f"b {encoded('2')}")])
    assert parse_metadata(lines) == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    "field",
    [
        ",",
        "a,",
        ",a",
        "a YQ==,,b",
        "a YQ==,a YQ==",
        "a YQ== YQ==",
        "a  YQ==",
        "a YQ",
        "a Y-_=",
        "a \u00fc",
        "a /w==",
        "a 7aCA",  # a lone surrogate
    ],
)
def test_malformed_metadata_are_refused(field: str) -> None:
    with pytest.raises(InvalidRequest, match="Upload-Metadata"):
        metadata(field)


@given(st.text(max_size=60))
def test_metadata_never_raise_anything_else(field: str) -> None:
    with suppress(InvalidRequest):
        assert all(isinstance(text, str) for text in metadata(field).values())


def test_length_is_declared_or_deferred() -> None:
    assert declared_length({"Upload-Length": "0"}) == 0
    assert declared_length({"Upload-Length": str(SIZE_BYTES_MAX)}) == SIZE_BYTES_MAX
    assert declared_length({"Upload-Defer-Length": "1"}) is None


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Upload-Length": ""},
        {"Upload-Length": "-1"},
        {"Upload-Length": "1e3"},
        {"Upload-Length": "1, 1"},
        {"Upload-Length": "\u0663"},
        {"Upload-Length": "5", "Upload-Defer-Length": "1"},
        {"Upload-Defer-Length": "0"},
        {"Upload-Defer-Length": ""},
        {"Upload-Defer-Length": "true"},
    ],
)
def test_bad_length_is_refused_by_its_header(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match=r"Upload-(Defer-)?Length"):
        declared_length(headers)


@pytest.mark.parametrize("digits", [str(SIZE_BYTES_MAX + 1), "9" * 4000])
def test_length_beyond_any_file_is_too_large(digits: str) -> None:
    with pytest.raises(PayloadTooLarge, match="Upload-Length"):
        declared_length({"Upload-Length": digits})
