"""Downloading one file: into NAME.part, which a later run goes on with, checked, synced, then renamed."""

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ca.errors import ChecksumMismatch, Conflict, InvalidRequest
from node.client import Client
from node.client_download import Content, describe, download

READ_BYTES = 1 << 20

Progress = Callable[[int, int | None], None]


class HashedFile:
    """A sink that hashes what it appends, and first what is there already."""

    def __init__(self, file: BinaryIO, progress: Progress, total_bytes: int) -> None:
        self._file = file
        self._progress = progress
        self._total_bytes = total_bytes
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    def read_existing(self) -> None:
        """Hash what an earlier run has written; the file then stands at its end."""
        while part := self._file.read(READ_BYTES):
            self._hash.update(part)
            self.size_bytes += len(part)

    async def write(self, part: bytes) -> None:
        """Append, in a thread: a slow disk must not stop the network."""
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


async def get_to_stream(client: Client, file_uuid: str, stream: BinaryIO, *, progress: Progress) -> None:
    """Write the content to a stream. A wrong checksum is only known at the end: then ChecksumMismatch."""
    content = await describe(client, file_uuid)
    sink = HashedFile(stream, progress, content.size_bytes)
    await download(client, file_uuid, content, sink)
    stream.flush()
    sink.check(content)


async def get_to_file(client: Client, file_uuid: str, output: str | None, *, progress: Progress) -> Path:
    """Write the content to `output`, by default to a new file of its own name here. Answers the path.

    Raises FilestoreError; after ChecksumMismatch nothing is left.
    """
    content = await describe(client, file_uuid)
    path = Path(output) if output is not None else _new_path(content.filename)
    if path.is_dir():
        path = path / _plain_name(content.filename)
    partial = path.with_name(f"{path.name}.part")
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with os.fdopen(descriptor, "r+b") as file:
        sink = HashedFile(file, progress, content.size_bytes)
        await asyncio.to_thread(sink.read_existing)
        if sink.size_bytes > content.size_bytes:
            raise Conflict(f"{partial} is larger than the file; remove it.")
        await download(client, file_uuid, content, sink)
        try:
            sink.check(content)
        except ChecksumMismatch:
            partial.unlink()
            raise
        file.flush()
        await asyncio.to_thread(os.fsync, file.fileno())
    partial.replace(path)
    return path


def _plain_name(filename: str) -> str:
    """The name that a server gave, as far as it is one.

    Raises InvalidRequest for a name that points elsewhere.
    """
    if not filename or filename in {".", ".."} or "/" in filename or not filename.isprintable():
        raise InvalidRequest(f"The file is named {filename!r}; give another name with --output.")
    return filename


def _new_path(filename: str) -> Path:
    path = Path(_plain_name(filename))
    if path.exists():
        raise Conflict(f"{path} exists; give another name with --output.")
    return path
