"""What the headers of a PUT say of its body, and whether those bytes fit the upload."""

import base64
import hashlib
from typing import Final

import pytest

from ca.errors import ChecksumMismatch, InvalidRequest, PayloadTooLarge
from metadata.model.records import PARTIAL, UploadRecord
from node.content.incoming import COMPLETION, IncomingBytes
from node.content.put import parse_put
from web.headers.digests import repr_digest
from web.headers.ranges import SIZE_BYTES_MAX

SHA256: Final = hashlib.sha256(b"content").hexdigest()
MD5: Final = base64.b64encode(hashlib.md5(b"content").digest()).decode()
WHOLE: Final = IncomingBytes(start=0, length_bytes=8, is_whole=True)
PATCH: Final = IncomingBytes(start=0, length_bytes=8, patch_offset=0)


def upload(
    size_bytes: int | None = None, *, offset: int = 0, kind: str = "", ended: bool = False
) -> UploadRecord:
    return UploadRecord(
        file_uuid="0192f0c0-0000-7000-8000-000000000000",
        status="available" if ended else "uploading",
        placement=[] if ended else ["n1"],
        size_bytes=size_bytes,
        expected_sha256="",
        blob_sha256="",
        offset_bytes=offset,
        expires_at_ms=0,
        kind=kind,
    )


def test_put_without_a_range_brings_the_whole_content() -> None:
    headers = {"Content-MD5": MD5, "Content-Digest": repr_digest(SHA256), "Upload-Checksum": "none"}
    whole = parse_put(headers, None, upload())
    assert (whole.start, whole.length_bytes, whole.is_whole, whole.whole_sha256) == (0, None, True, SHA256)
    assert [checksum.field for checksum in whole.checksums] == ["Content-MD5"]
    with pytest.raises(ChecksumMismatch):
        parse_put(headers | {"Repr-Digest": repr_digest(hashlib.sha256().hexdigest())}, None, upload())


@pytest.mark.parametrize("length_bytes", [4, None])
def test_put_with_a_range_brings_a_piece(length_bytes: int | None) -> None:
    piece = parse_put({"Content-Range": "bytes 4-7/8"}, length_bytes, upload())
    assert piece == IncomingBytes(start=4, length_bytes=4, size_bytes=8)
    assert parse_put({"Content-Range": "bytes 4-7/*"}, length_bytes, upload(9)).size_bytes is None


def test_put_of_nothing_asks_for_the_completion() -> None:
    asked = parse_put({"Content-Range": "Bytes */8"}, 0, upload())
    assert asked == IncomingBytes(start=None, length_bytes=0, size_bytes=8)


@pytest.mark.parametrize(
    ("span", "length_bytes", "record"),
    [
        ("bytes 4-7/8", 5, upload()),
        ("bytes 4-7/8", 4, upload(9)),
        ("bytes */8", 1, upload()),
        ("bytes */8", None, upload()),
        ("bytes */8", 0, upload(9)),
        ("bytes */8", 0, upload(9, ended=True)),
    ],
)
def test_range_that_contradicts_is_rejected_naming_it(
    span: str, length_bytes: int | None, record: UploadRecord
) -> None:
    with pytest.raises(InvalidRequest, match="Content-Range"):
        parse_put({"Content-Range": span}, length_bytes, record)


@pytest.mark.parametrize(
    ("incoming", "record", "is_all"),
    [
        (WHOLE, upload(), True),
        (WHOLE, upload(8), True),
        (WHOLE, upload(9), False),
        (WHOLE, upload(8, offset=1), False),
        (IncomingBytes(start=0, is_whole=True), upload(8), False),
        (PATCH, upload(), False),
        (PATCH, upload(8), True),
        (PATCH, upload(8, kind=PARTIAL), False),
        (IncomingBytes(start=0, length_bytes=8, size_bytes=8, patch_offset=0), upload(), True),
        (IncomingBytes(start=4, length_bytes=8, patch_offset=4), upload(8), False),
        (IncomingBytes(start=0, length_bytes=8, size_bytes=8), upload(8), False),
        (COMPLETION, upload(0), False),
    ],
)
def test_bytes_are_all_of_the_content(incoming: IncomingBytes, record: UploadRecord, is_all: bool) -> None:
    assert incoming.is_all_of(record) == is_all


def test_bytes_beyond_the_size_are_rejected() -> None:
    piece = IncomingBytes(start=4, length_bytes=5, patch_offset=4)
    piece.require_fit(upload())
    piece.require_fit(upload(9))
    for too_small in (upload(8), upload()):
        with pytest.raises(PayloadTooLarge):
            IncomingBytes(start=4, length_bytes=5, size_bytes=8).require_fit(too_small)
    with pytest.raises(PayloadTooLarge):
        IncomingBytes(start=SIZE_BYTES_MAX, length_bytes=1).require_fit(upload())


def test_whole_content_has_the_declared_length() -> None:
    WHOLE.require_fit(upload(8))
    with pytest.raises(InvalidRequest):
        WHOLE.require_fit(upload(9))
    with pytest.raises(PayloadTooLarge, match="Content-Length"):
        WHOLE.require_fit(upload(7))
    with pytest.raises(InvalidRequest):
        WHOLE.require_length(7, upload(8))
    PATCH.require_length(8, upload(9))
    with pytest.raises(InvalidRequest):
        PATCH.require_length(7, upload(9))
