"""The beginning of what is uploaded: it is compared with what the server has before an upload is resumed."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from filestore_client.base.errors import InvalidRequest
from filestore_client.transfer.sources import STREAM_PIECE_BYTES, Source, source_of
from filestore_client.transfer.uploading import UploadState, is_begun_with, repr_digest

CONTENT = os.urandom(2 * STREAM_PIECE_BYTES + 5)
OFFSETS = [0, 1, STREAM_PIECE_BYTES - 1, STREAM_PIECE_BYTES, STREAM_PIECE_BYTES + 3, len(CONTENT)]
MakeSource = Callable[[bytes], Source]


@pytest.fixture(params=["path", "bytes", "stream"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> MakeSource:
    """What makes a source of a content."""

    def of_path(content: bytes) -> Source:
        path = tmp_path / "content"
        path.write_bytes(content)
        file = path.open("rb")
        request.addfinalizer(file.close)
        return source_of(file)

    def of_stream(content: bytes) -> Source:
        return source_of(content[at : at + 1_000_000] for at in range(0, len(content), 1_000_000))

    makers: dict[str, MakeSource] = {"path": of_path, "bytes": source_of, "stream": of_stream}
    return makers[request.param]


def state_at(offset: int, content: bytes = CONTENT) -> UploadState:
    digest = repr_digest(hashlib.sha256(content[:offset]).hexdigest())
    return UploadState(offset, len(content), digest if offset else "")


@pytest.mark.parametrize("offset", OFFSETS)
async def test_content_that_begins_as_the_upload_is_read_on(source: MakeSource, offset: int) -> None:
    content = source(CONTENT)
    assert await is_begun_with(content, state_at(offset))
    sent, at = b"", offset
    while length := await content.prepare(at):
        sent += await content.read(at, length)
        at = offset + len(sent)
    assert sent == CONTENT[offset:]
    assert await content.sha256() == hashlib.sha256(CONTENT).hexdigest()


@pytest.mark.parametrize("offset", OFFSETS[1:])
async def test_content_that_differs_in_one_byte_before_the_offset_is_another(
    source: MakeSource, offset: int
) -> None:
    at = offset // 2
    other = CONTENT[:at] + bytes([CONTENT[at] ^ 1]) + CONTENT[at + 1 :]
    assert not await is_begun_with(source(other), state_at(offset))
    behind = CONTENT[:offset] + bytes(len(CONTENT) - offset)
    assert await is_begun_with(source(behind), state_at(offset))


async def test_content_that_is_shorter_than_the_upload_is_refused(source: MakeSource) -> None:
    with pytest.raises(InvalidRequest, match="The server has"):
        await is_begun_with(source(CONTENT[:-1]), state_at(len(CONTENT)))


async def test_server_that_tells_no_digest_is_gone_on_with(source: MakeSource) -> None:
    assert await is_begun_with(source(CONTENT), UploadState(7, len(CONTENT)))
