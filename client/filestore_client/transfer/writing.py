"""A new file that is open for writing: the written bytes go into an upload, which ends with `close`.

Tested by tests/cluster/test_client_contents.py.
"""

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, NoReturn, Self

from filestore_client.base.errors import FilestoreError
from filestore_client.base.records import FileRecord
from filestore_client.transfer.sources import StreamSource

QUEUE_PARTS_MAX = 4  # that wait to be sent
PART_BYTES = 1 << 20


class AsyncWriter:
    """Use `async with`, or `close` it: only then the file is available, and `record` is its record.

    Leaving by an exception gives the upload up: half a file never becomes available. Raises FilestoreError
    from `write` or `close` for what the upload was refused with.
    """

    def __init__(self, send: Callable[[StreamSource], Coroutine[Any, Any, FileRecord]]) -> None:
        """`send` uploads a source, until the file is available."""
        self.record: FileRecord | None = None
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(QUEUE_PARTS_MAX)
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._at = 0
        self._is_closed = False
        self._is_given_up = False
        self._sending = asyncio.create_task(send(StreamSource(self._queue.get)), name="upload of a stream")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            await self.abort()

    def tell(self) -> int:
        """How many bytes were written."""
        return self._at

    async def write(self, part: bytes | bytearray | memoryview) -> int:
        """Take the next bytes, all of them; waits while the upload is behind."""
        if self._is_closed:
            raise ValueError("the file is closed")
        taken = bytes(part)
        self._pending.append(taken)
        self._pending_bytes += len(taken)
        self._at += len(taken)
        if self._pending_bytes >= PART_BYTES:
            await self._flush()
        return len(taken)

    async def close(self) -> FileRecord:
        """End the upload; the record of the file, which is available then. Again it answers the same."""
        if not self._is_closed:
            self._is_closed = True
            await self._flush()
            await self._put(b"")
        if self._is_given_up:
            raise FilestoreError("The upload was discarded.")
        self.record = await self._sending
        return self.record

    async def abort(self) -> None:
        """Abort the upload, which expires on the server. May be repeated."""
        self._is_closed = self._is_given_up = True
        self._sending.cancel()
        await asyncio.gather(self._sending, return_exceptions=True)

    async def _flush(self) -> None:
        if self._pending:
            part = b"".join(self._pending)
            self._pending, self._pending_bytes = [], 0
            await self._put(part)

    async def _put(self, part: bytes) -> None:
        """Raises what the upload has failed with."""
        if self._sending.done():
            await self._ended_early()
        putting = asyncio.create_task(self._queue.put(part))
        try:
            await asyncio.wait({putting, self._sending}, return_when=asyncio.FIRST_COMPLETED)
        # The bytes of this call are missing in the file: it must not become available.
        except asyncio.CancelledError:
            self._is_closed = self._is_given_up = True
            self._sending.cancel()
            raise
        finally:
            is_put = putting.done()
            putting.cancel()
        if not is_put:
            await self._ended_early()

    async def _ended_early(self) -> NoReturn:
        """Raises why."""
        await self._sending
        raise FilestoreError("The upload ended before all bytes were written.")
