"""The open files of the file system for fsspec: for reading, for writing, and for writing compressed.

Tested by tests/cluster/test_client_open_files.py.
"""

import io
import os
from typing import Any

from fsspec.compression import compr
from fsspec.spec import AbstractBufferedFile

from filestore_client.blocking import BlockingWriter, Client
from filestore_client.loop_thread import LoopThread
from filestore_client.transfer.reading import BLOCK_BYTES
from filestore_client.transfer.writing import AsyncWriter


class ReadFile(AbstractBufferedFile):
    """Stored content, as fsspec's other file systems open it: with `size`, `path`, `fs` and a cache.

    It always reads the content that it was opened with, also after it was pickled, or in a forked process.
    """

    DEFAULT_BLOCK_SIZE = BLOCK_BYTES

    def __init__(self, fs: Any, path: str, entry: dict[str, Any], **options: Any) -> None:
        """`entry`: what `info` says of the path."""
        self._client: Client = fs.client
        self._file_uuid, by_id = entry["file_uuid"], f"?id={entry['file_uuid']}"
        self._exact = entry["name"].removesuffix(by_id) + by_id
        self._connect()
        super().__init__(fs, path, "rb", **options | {"size": entry["size"]})
        self._details = entry

    def close(self) -> None:
        """End what is under way."""
        if not self.closed:
            self._reader.close()
        super().close()

    def __reduce__(self) -> tuple[Any, ...]:
        reopen, (fs, _, *rest) = super().__reduce__()
        return reopen, (fs, self._exact, *rest)

    def _connect(self) -> None:
        self._pid = os.getpid()
        self._reader = self._client.files.open(self._file_uuid)

    def _fetch_range(self, start: int, end: int) -> bytes:
        """Called by the cache."""
        if self._pid != os.getpid():
            self._connect()
        self._reader.seek(start)
        return self._reader.read(end - start)


class WrittenFile(BlockingWriter):
    """A new file, with what fsspec's users ask of open files."""

    mode = "wb"

    def __init__(self, fs: Any, path: str, inner: AsyncWriter, loop: LoopThread) -> None:
        super().__init__(inner, loop)
        self.fs, self.path = fs, path

    @property
    def size(self) -> int:
        """How many bytes were written."""
        return self.tell()


class CompressedFile(io.BufferedIOBase):
    """A new file that is compressed on its way, and ended with it: Python's compressors leave theirs open.

    If it is collected before it was closed, the file is given up.
    """

    def __init__(self, file: BlockingWriter, compression: str) -> None:
        super().__init__()
        self._file, self._compressor = file, compr[compression](file, mode="w")

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, part: Any) -> int:
        """Take all of these bytes. Raises FilestoreError."""
        written: int = self._compressor.write(part)
        return written

    def close(self) -> None:
        """End the upload: the file is available then. Raises FilestoreError."""
        if self.closed:
            return
        try:
            self._compressor.close()
            self._file.close()
        except BaseException:
            self._file.give_up()
            raise
        finally:
            super().close()

    def _dealloc_warn(self, _wrapper: object) -> None:
        self._file.give_up()

    def __del__(self) -> None:
        self._file.give_up()
        self.close()
