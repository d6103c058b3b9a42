"""The header fields of a creation by tus: every text is read, or refused by the name of its header."""

import base64
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from api.tus_creation import final_uuid
from ca.errors import InvalidRequest, PayloadTooLarge
from metadata.model.identifiers import is_uuid
from runtime.bounds import PARTS_MAX
from web.headers.ranges import SIZE_BYTES_MAX
from web.headers.tus_fields import declared_length, final_concat, parse_metadata, parts_field

FIRST, SECOND = "0192f0c1-2345-7abc-8def-0123456789ab", "0192f0c1-2345-7abc-8def-0123456789ac"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def metadata(field: str) -> dict[str, str]:
    return parse_metadata({"Upload-Metadata": field})


def test_metadata_are_texts_by_their_keys() -> None:
    assert parse_metadata({}) == metadata("") == metadata("  ") == {}
    pairs = f"filename {encoded('ü.zip')},empty,also , is_x {encoded('true')}"
    assert metadata(pairs.replace("=", "")) == metadata(pairs)
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


def parts(field: str) -> list[str] | None:
    return parts_field({"Upload-Concat": field})


def test_final_upload_names_its_parts_by_the_paths_of_their_addresses() -> None:
    assert parts_field({}) is None
    assert parts("partial") == []
    named = [f"https://n1:7443/api/v1/files/{FIRST}/content", f"/api/v1/files/{SECOND.upper()}/content?x=1#y"]
    assert parts(f"final;{' '.join(named)}") == [FIRST, SECOND]
    assert parts(f"final; http://proxy/files/api/v1/files/{FIRST}/content ") == [FIRST]
    assert parts(final_concat([SECOND, FIRST])) == [SECOND, FIRST]


@pytest.mark.parametrize(
    "field",
    [
        "",
        "Partial",
        "final",
        "final;",
        "final;  ",
        f"final;{FIRST}",
        f"final;/api/v1/files/{FIRST}",
        f"final;/api/v1/files/{FIRST}/content/",
        f"final;/api/v1/files/{FIRST}/../content",
        "final;/api/v1/files/none/content",
        f"final;//[/api/v1/files/{FIRST}/content",
        f"final;/api/v1/files/{FIRST}/content,/api/v1/files/{SECOND}/content",
        f"final;/api/v1/files/{FIRST}/content https://n1/api/v1/files/{FIRST}/content",
        f"partial;/api/v1/files/{FIRST}/content",
    ],
)
def test_malformed_concatenation_is_refused(field: str) -> None:
    with pytest.raises(InvalidRequest, match="Upload-Concat"):
        parts(field)


def test_parts_are_a_hundred_at_most() -> None:
    addresses = [f"/api/v1/files/{FIRST[:-3]}{number:03x}/content" for number in range(PARTS_MAX + 1)]
    assert len(parts(f"final;{' '.join(addresses[1:])}") or ()) == PARTS_MAX
    with pytest.raises(InvalidRequest, match="Upload-Concat"):
        parts(f"final;{' '.join(addresses)}")


@given(st.text(max_size=60))
def test_concatenation_never_raises_anything_else(field: str) -> None:
    with suppress(InvalidRequest):
        parts(f"final;/api/v1/files/{field}/content {field}")


def test_id_of_a_file_follows_from_its_owner_its_kind_and_its_parts() -> None:
    made = [
        final_uuid(subject, kind, named)
        for subject in ("alice", "bob")
        for kind in ("vm", "backup")
        for named in ([FIRST], [FIRST, SECOND], [SECOND, FIRST])
    ]
    assert len(set(made)) == len(made)
    assert all(is_uuid(each) and each[:13] == FIRST[:13] and each[14] == "7" for each in made)
    assert all(each[19] in "89ab" for each in made)
    assert final_uuid("alice", "vm", [FIRST]) == made[0]
