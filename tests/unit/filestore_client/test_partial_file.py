"""A download on its way to a file: what the state beside it names is on the disk."""

import errno
import os
from pathlib import Path

import msgspec
import pytest

from filestore_client.base.records import Content
from filestore_client.transfer.partial_file import PartialFile, PartialState
from tests.unit.upload_machine import CONTENT, SHA256

HALF_BYTES = len(CONTENT) // 2


def partial(directory: Path) -> PartialFile:
    content = Content(size_bytes=len(CONTENT), sha256=SHA256, filename="f")
    return PartialFile(directory / "f", content, lambda _done, _size: None, threads=1)


def state(directory: Path) -> PartialState:
    return msgspec.json.decode((directory / "f.part.state").read_bytes(), type=PartialState)


async def test_bytes_that_came_are_found_again(tmp_path: Path) -> None:
    async with partial(tmp_path) as file:
        await file.write_at(0, CONTENT[:HALF_BYTES])
    assert state(tmp_path).spans == [(0, HALF_BYTES)]
    async with partial(tmp_path) as file:
        assert file.coverage.size_bytes == HALF_BYTES


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
async def test_bytes_whose_sync_failed_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The kernel may have dropped them, and would call a second sync a success."""
    failures = [OSError(errno.EIO, os.strerror(errno.EIO))]
    sync = getattr(os, call)

    def fail_once(descriptor: int) -> None:
        if failures and Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".part":
            raise failures.pop()
        sync(descriptor)

    async with partial(tmp_path) as file:
        await file.write_at(0, CONTENT[:HALF_BYTES])
    monkeypatch.setattr(os, call, fail_once)
    async with partial(tmp_path) as file:
        await file.write_at(HALF_BYTES, CONTENT[HALF_BYTES:])
        with pytest.raises(OSError, match="Input/output error"):
            await (file._record() if call == "fdatasync" else file.finish(SHA256))
    assert not failures
    assert state(tmp_path).spans == [(0, HALF_BYTES)]
