"""What tus and plain PUT requests may say in headers; the answers over HTTP are in the cluster tests."""

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from multidict import CIMultiDict

from ca.errors import (
    ChecksumMismatch,
    FilestoreError,
    InvalidRequest,
    PreconditionFailed,
    UnsupportedMediaType,
)
from metadata.model.records import UploadRecord
from node.content import tus
from node.content.incoming import IncomingBytes
from web.headers.digests import (
    TUS_ALGORITHMS,
    piece_checksums,
    piece_digest,
    repr_digest,
    require_before_body,
    tus_checksum,
    whole_digest,
)
from web.headers.ranges import SIZE_BYTES_MAX
from web.headers.tus_fields import EXTENSIONS

GOOD = {
    "Tus-Resumable": "1.0.0",
    "Content-Type": "application/offset+octet-stream",
    "Upload-Offset": "7",
}
SHA256 = hashlib.sha256(b"content").hexdigest()
ENCODED = base64.b64encode(bytes.fromhex(SHA256)).decode()


def record(size_bytes: int | None) -> UploadRecord:
    """An upload that stands somewhere."""
    return UploadRecord(
        file_uuid="0192f0c0-0000-7000-8000-000000000000",
        status="uploading",
        placement=["a"],
        size_bytes=size_bytes,
        expected_sha256="",
        blob_sha256="",
        offset_bytes=0,
        expires_at_ms=1_700_000_000_000,
    )


def test_patch_with_good_headers_is_read() -> None:
    assert tus.parse_patch(GOOD, 2) == IncomingBytes(start=7, length_bytes=2, patch_offset=7)


def test_patch_may_declare_the_length() -> None:
    declared = tus.parse_patch(GOOD | {"Upload-Length": "9"})
    assert declared == IncomingBytes(start=7, size_bytes=9, patch_offset=7)


@pytest.mark.parametrize("version", [None, "", "0.2.2", "1.0", "1.0.0, 1.0.1"])
def test_patch_of_another_version_is_refused_and_told_which_one(version: str | None) -> None:
    headers = {name: value for name, value in GOOD.items() if name != "Tus-Resumable"}
    if version is not None:
        headers["Tus-Resumable"] = version
    with pytest.raises(PreconditionFailed) as caught:
        tus.parse_patch(headers)
    assert caught.value.headers["Tus-Version"] == "1.0.0"


@pytest.mark.parametrize("kind", ["", "application/octet-stream", "application/offset+octet-stream; a=b"])
def test_patch_of_another_content_type_is_refused(kind: str) -> None:
    with pytest.raises(UnsupportedMediaType):
        tus.parse_patch(GOOD | {"Content-Type": kind})


@pytest.mark.parametrize(
    "value", ["", "-1", "+1", "1e3", "1.0", " 1", "0x1", "٣", "1" * 17, str(SIZE_BYTES_MAX + 1)]
)
@pytest.mark.parametrize("name", ["Upload-Offset", "Upload-Length"])
def test_patch_with_a_bad_number_is_refused_naming_the_header(name: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=name):
        tus.parse_patch(GOOD | {name: value})


@pytest.mark.parametrize("algorithm", TUS_ALGORITHMS)
def test_checksum_is_read_and_compared(algorithm: str) -> None:
    digest = hashlib.new(algorithm, b"content").digest()
    checksum = tus_checksum(f"{algorithm} {base64.b64encode(digest).decode()}")
    assert (checksum.algorithm, checksum.digest) == (algorithm, digest)
    found = checksum.new()
    found.update(b"conten")
    with pytest.raises(ChecksumMismatch, match="Upload-Checksum"):
        checksum.require(found)
    found.update(b"t")
    checksum.require(found)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "sha256",
        f"sha512 {ENCODED}",
        f"crc32 {ENCODED}",
        f"SHA256 {ENCODED}",
        f"sha1 {ENCODED}",
        f"sha256 {ENCODED[:-2]}",
        f"sha256  {ENCODED}",
        f"sha256 {ENCODED} x",
        "sha256 \u00fc",
        "md5 !!!!",
    ],
)
def test_malformed_or_unknown_checksum_is_refused_naming_the_header(value: str) -> None:
    with pytest.raises(InvalidRequest, match="Upload-Checksum"):
        tus.parse_patch(GOOD | {"Upload-Checksum": value})


def test_patch_takes_every_digest_that_is_declared() -> None:
    md5 = base64.b64encode(hashlib.md5(b"content").digest()).decode()
    fields = tus.parse_patch(
        GOOD
        | {
            "Upload-Checksum": f"md5 {md5}",
            "Content-Digest": repr_digest(SHA256),
            "Repr-Digest": repr_digest(SHA256),
        }
    )
    assert [checksum.field for checksum in fields.checksums] == ["Content-Digest", "Upload-Checksum"]
    assert fields.whole_sha256 == SHA256
    assert piece_checksums({}) == ()


def test_patch_without_offset_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="Upload-Offset"):
        tus.parse_patch({name: value for name, value in GOOD.items() if name != "Upload-Offset"})


@given(st.dictionaries(st.sampled_from([*GOOD, "Upload-Length", "Upload-Checksum"]), st.text(max_size=40)))
def test_patch_headers_never_raise_anything_else(headers: dict[str, str]) -> None:
    try:
        fields = tus.parse_patch(GOOD | headers)
    except FilestoreError:
        return
    assert fields.start is not None
    assert 0 <= fields.start <= SIZE_BYTES_MAX


def test_head_tells_offset_length_and_expiry() -> None:
    headers = tus.head(record(10), 4).headers
    assert (headers["Upload-Offset"], headers["Upload-Length"]) == ("4", "10")
    assert headers["Upload-Expires"] == "Tue, 14 Nov 2023 22:13:20 GMT"
    assert headers["Cache-Control"] == "no-store"


def test_head_tells_the_digest_of_the_bytes_before_the_offset() -> None:
    begun = replace(record(10), offset_bytes=7, prefix_sha256=SHA256)
    assert tus.head(begun, 7).headers["Upload-Prefix-Digest"] == repr_digest(SHA256)
    stored = replace(record(7), offset_bytes=7, blob_sha256=SHA256, placement=[])
    assert tus.head(stored, 7).headers["Upload-Prefix-Digest"] == repr_digest(SHA256)


def test_head_tells_no_digest_without_an_offset() -> None:
    assert "Upload-Prefix-Digest" not in tus.head(record(10), 0).headers
    gathering = replace(record(10), offset_bytes=7, prefix_sha256=SHA256, parts=["p"])
    assert "Upload-Prefix-Digest" not in tus.head(gathering, 7).headers


def test_head_of_unknown_size_says_so() -> None:
    headers = tus.head(record(None), 0).headers
    assert headers["Upload-Defer-Length"] == "1"
    assert "Upload-Length" not in headers


def test_extensions_are_those_of_the_interface() -> None:
    creations = {"creation", "creation-defer-length", "creation-with-upload"}
    expected = {"checksum", "concatenation", "expiration", "termination", *creations}
    assert set(EXTENSIONS.split(",")) == expected


@pytest.mark.parametrize(
    "headers",
    [
        {"Repr-Digest": f"sha-256=:{ENCODED}:"},
        {"Repr-Digest": f"sha-512=:AAAA:, sha-256=:{ENCODED}:"},
        {"Digest": f"SHA-256={ENCODED}"},
        {"Digest": f"md5=abc, sha-256={ENCODED}", "Repr-Digest": f"sha-256=:{ENCODED}:"},
    ],
)
def test_digest_of_the_whole_is_read(headers: dict[str, str]) -> None:
    assert whole_digest(headers) == SHA256


@pytest.mark.parametrize(
    ("name", "other", "found"),
    [
        ("Repr-Digest", "sha-512=:AAAA:", f"sha-256=:{ENCODED}:"),
        ("Digest", "md5=aa==", f"sha-256={ENCODED}"),
    ],
)
def test_digest_in_a_second_line_counts(name: str, other: str, found: str) -> None:
    assert whole_digest(CIMultiDict([(name, other), (name, found)])) == SHA256
    assert whole_digest(CIMultiDict([(name, found), (name, other)])) == SHA256


def test_lines_that_contradict_each_other_are_refused_naming_the_header() -> None:
    none = base64.b64encode(bytes(32)).decode()
    lines = CIMultiDict([("Content-Digest", f"sha-256=:{each}:") for each in (ENCODED, none)])
    with pytest.raises(InvalidRequest, match="Content-Digest"):
        piece_checksums(lines)
    lines = CIMultiDict([("Upload-Checksum", f"sha256 {each}") for each in (ENCODED, none)])
    with pytest.raises(InvalidRequest, match="Upload-Checksum"):
        piece_checksums(lines)
    with pytest.raises(InvalidRequest, match="Upload-Offset"):
        tus.parse_patch(CIMultiDict([*GOOD.items(), ("Upload-Offset", "8")]))


@pytest.mark.parametrize("name", ["Repr-Digest", "Digest", "Content-Digest", "Upload-Checksum"])
def test_digest_that_is_to_come_behind_the_body_is_refused(name: str) -> None:
    require_before_body({"Trailer": "Expires"})
    with pytest.raises(InvalidRequest, match=name):
        require_before_body(CIMultiDict([("Trailer", "Expires"), ("Trailer", f"X, {name.lower()}")]))


@pytest.mark.parametrize("headers", [{}, {"Repr-Digest": "sha-512=:AAAA:"}, {"Digest": "md5=abc"}])
def test_digest_by_other_algorithms_is_none(headers: dict[str, str]) -> None:
    assert whole_digest(headers) == ""


@pytest.mark.parametrize(
    "value", ["sha-256", "sha-256=", "sha-256=::", "sha-256=:AAAA:", "sha-256=:!!!!:", f"sha-256={ENCODED}"]
)
def test_malformed_digest_is_refused_naming_the_header(value: str) -> None:
    with pytest.raises(InvalidRequest, match="Repr-Digest"):
        whole_digest({"Repr-Digest": value})


def test_digests_that_contradict_each_other_are_refused() -> None:
    other = base64.b64encode(bytes(32)).decode()
    with pytest.raises(InvalidRequest, match="Repr-Digest"):
        whole_digest({"Repr-Digest": f"sha-256=:{ENCODED}:", "Digest": f"sha-256={other}"})


def test_digest_is_written_as_it_is_read() -> None:
    assert piece_digest({"Content-Digest": repr_digest(SHA256)}) == SHA256


@given(st.text(max_size=80))
def test_digests_never_raise_anything_else(value: str) -> None:
    for name in ("Repr-Digest", "Digest"):
        try:
            digest = whole_digest({name: value})
        except InvalidRequest:
            continue
        assert len(digest) in (0, 64)
