"""The Python client: a stream whose content has a name goes on where an earlier upload of it ended."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from filestore_client import Client
from filestore_client.base.errors import ChecksumMismatch, NotFound
from filestore_client.transfer.sources import STREAM_PIECE_BYTES

pytestmark = pytest.mark.usefixtures("own_memory")

MIB = 1 << 20
CONTENT = os.urandom(3 * STREAM_PIECE_BYTES + 5)


class CutOff(Exception):
    """The source has ended too early."""


def parts_of(content: bytes, *, until: int | None = None) -> Iterator[bytes]:
    for at in range(0, len(content), MIB):
        if until is not None and at >= until:
            raise CutOff
        yield content[at : at + MIB]


def test_file_uuid_is_told_before_the_first_byte_is_read(client: Client) -> None:
    told: list[str] = []

    def parts() -> Iterator[bytes]:
        assert len(told) == 1
        yield b"content"

    record = client.files.upload(parts(), filename="told.bin", created=told.append)
    assert told == [record.file_uuid]


@pytest.mark.parametrize("until", [MIB, 2 * STREAM_PIECE_BYTES + 3 * MIB], ids=["begun", "nearly_all"])
def test_stream_of_an_identity_goes_on_where_it_ended(client: Client, until: int) -> None:
    told: list[str] = []
    identity = f"content of this test until {until}"
    with pytest.raises(CutOff):
        client.files.upload(
            parts_of(CONTENT, until=until), filename="cut.bin", identity=identity, created=told.append
        )
    sent: list[int] = []
    record = client.files.upload(
        parts_of(CONTENT),
        filename="cut.bin",
        identity=identity,
        created=told.append,
        progress=lambda done, _: sent.append(done),
    )
    assert told == [record.file_uuid, record.file_uuid]
    assert sent[0] == until // STREAM_PIECE_BYTES * STREAM_PIECE_BYTES
    assert b"".join(client.files.read(record.file_uuid)) == CONTENT


def test_other_content_under_an_identity_is_refused_and_forgotten(client: Client) -> None:
    told: list[str] = []
    with pytest.raises(CutOff):
        client.files.upload(
            parts_of(CONTENT, until=2 * STREAM_PIECE_BYTES), filename="x", identity="x", created=told.append
        )
    sent: list[int] = []
    with pytest.raises(ChecksumMismatch, match="begins differently"):
        client.files.upload(
            parts_of(bytes(len(CONTENT))),
            filename="x",
            identity="x",
            created=told.append,
            progress=lambda done, _: sent.append(done),
        )
    assert (told[0], sent) == (told[1], [])
    with pytest.raises(NotFound):
        client.files.get(told[0])
    record = client.files.upload(parts_of(CONTENT), filename="x", identity="x", created=told.append)
    assert record.file_uuid == told[2] != told[1]


def test_other_content_is_not_taken_for_the_one_that_is_stored_under_an_identity(
    client: Client, tmp_path: Path
) -> None:
    """The run that had stored all was killed before it forgot."""
    told: list[str] = []
    with pytest.raises(CutOff):
        client.files.upload(
            parts_of(CONTENT, until=STREAM_PIECE_BYTES), filename="y", identity="y", created=told.append
        )
    (memory,) = (tmp_path / "state").rglob("*.json")
    kept = memory.read_bytes()
    client.files.upload(parts_of(CONTENT), filename="y", identity="y")
    memory.write_bytes(kept)
    with pytest.raises(ChecksumMismatch, match="begins differently"):
        client.files.upload(parts_of(bytes(len(CONTENT))), filename="y", identity="y")
    assert not memory.exists()
    assert b"".join(client.files.read(told[0])) == CONTENT
