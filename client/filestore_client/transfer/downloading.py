"""Downloading one file: into NAME.part, which a later run goes on with, checked, synced, then renamed."""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from filestore_client.base.errors import ChecksumMismatch, Conflict, InvalidRequest
from filestore_client.base.records import Content
from filestore_client.base.transport import Transport
from filestore_client.transfer.partial_file import PartialFile
from filestore_client.transfer.ranges import CONNECTIONS, download_ranges
from filestore_client.transfer.streaming import download

Progress = Callable[[int, int | None], None]


class HashedStream:
    """A sink that hashes what it appends."""

    def __init__(self, file: BinaryIO, progress: Progress, total_bytes: int) -> None:
        self._file = file
        self._progress = progress
        self._total_bytes = total_bytes
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    async def write(self, part: bytes) -> None:
        """Append, in a thread: a slow reader must not stop the network."""
        await asyncio.to_thread(self._write, part)
        self._progress(self.size_bytes, self._total_bytes)

    def _write(self, part: bytes) -> None:
        self._file.write(part)
        self._hash.update(part)
        self.size_bytes += len(part)

    def check(self, content: Content) -> None:
        """Raises ChecksumMismatch unless this is the content, to the byte."""
        if (self.size_bytes, self._hash.hexdigest()) != (content.size_bytes, content.sha256):
            raise ChecksumMismatch(
                f"Expected {content.size_bytes} bytes with SHA-256 {content.sha256},"
                f" got {self.size_bytes} with {self._hash.hexdigest()}."
            )


async def download_to_stream(
    transport: Transport, file_uuid: str, content: Content, stream: BinaryIO, *, progress: Progress
) -> None:
    """Write the content to a stream, in order, over one connection.

    A wrong checksum is only known at the end: then ChecksumMismatch.
    """
    sink = HashedStream(stream, progress, content.size_bytes)
    await download(transport, file_uuid, content, sink)
    stream.flush()
    sink.check(content)


async def download_to_file(
    transport: Transport,
    file_uuid: str,
    content: Content,
    target: Path | None,
    *,
    connections: int = CONNECTIONS,
    progress: Progress,
) -> Path:
    """Write the content to `target`; in a directory, by default this one, to a new file of its own name.

    Answers the path. Raises FilestoreError, OSError; after ChecksumMismatch nothing is left.
    """
    path = target or Path()
    is_named = not path.is_dir()
    if not is_named:
        path = _new_path(path, content.filename)
    if path.exists() and not path.is_file():
        raise InvalidRequest(f"{path} is not a regular file; write to an open one instead.")
    writing = PartialFile(path, content, progress, threads=connections, replaces=is_named)
    async with writing as partial:
        hashing = asyncio.create_task(partial.sha256())
        try:
            await download_ranges(transport, file_uuid, content, partial, connections=connections)
            sha256 = await hashing
        finally:
            hashing.cancel()
            await asyncio.gather(hashing, return_exceptions=True)
        await partial.finish(sha256)
    return path


def _plain_name(filename: str) -> str:
    """The name that a server gave, as far as it is one.

    Raises InvalidRequest for a name that points elsewhere or is hidden: its uploader chose it.
    """
    if not filename or filename in {".", ".."} or "/" in filename or not filename.isprintable():
        raise InvalidRequest(f"The file is named {filename!r}; give it another name here.")
    if filename.startswith("."):  # a shell, or another program, would read it
        raise InvalidRequest(f"The file is named {filename!r}, a hidden file; give it a name here.")
    return filename


def _new_path(directory: Path, filename: str) -> Path:
    path = directory / _plain_name(filename)
    if path.exists():
        raise Conflict(f"{path} exists; give it another name here.")
    return path
