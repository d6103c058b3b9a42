"""Stored content as a file that is open for reading: seekable, with read-ahead.

Tested by tests/cluster/test_client_contents.py.
"""

import asyncio
import os
from collections import OrderedDict
from typing import Self

from filestore_client.base.records import Content
from filestore_client.base.transport import Transport
from filestore_client.transfer.downloading import read_span

BLOCK_BYTES = 4 << 20  # what a node verifies at once
READ_AHEAD_BLOCKS = 2
BLOCKS_MAX = 8  # in memory


class AsyncReader:
    """The content of one file. `read`, `seek` and `tell` as of a file; use `async with`, or `close` it.

    Sequential reads make it fetch the next blocks ahead. The content is always that of the moment of opening:
    content never changes.
    """

    def __init__(self, transport: Transport, file_uuid: str, content: Content) -> None:
        self.content = content
        self._transport, self._file_uuid = transport, file_uuid
        self._at = 0
        self._blocks: OrderedDict[int, asyncio.Task[bytes]] = OrderedDict()
        self._last_block = -1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def size_bytes(self) -> int:
        """Return the size of the whole content."""
        return self.content.size_bytes

    def tell(self) -> int:
        """The position of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move; the new position. Raises ValueError for one before the beginning."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size_bytes}[whence]
        if base + offset < 0:
            raise ValueError(f"there is no position {base + offset}")
        self._at = base + offset
        return self._at

    async def read(self, size: int = -1) -> bytes:
        """Read `size` bytes, fewer only at the end; all remaining bytes for -1. Raises FilestoreError."""
        stop = self.size_bytes if size < 0 else min(self._at + size, self.size_bytes)
        parts: list[bytes] = []
        while self._at < stop:
            number, offset = divmod(self._at, BLOCK_BYTES)
            block = await self._block(number)
            part = block[offset : offset + stop - self._at]
            parts.append(part)
            self._at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def close(self) -> None:
        """End what is under way; again is harmless."""
        tasks = list(self._blocks.values())
        self._blocks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _block(self, number: int) -> bytes:
        follows = number in (self._last_block, self._last_block + 1)
        self._last_block = number
        wanted = range(number, number + 1 + (READ_AHEAD_BLOCKS if follows else 0))
        for each in wanted:
            self._begin(each)
        task = self._blocks[number]
        try:
            return await asyncio.shield(task)
        except BaseException:
            if task.done():
                self._blocks.pop(number, None)  # who reads again tries again
            raise

    def _begin(self, number: int) -> None:
        if number in self._blocks:
            self._blocks.move_to_end(number)
            return
        if number * BLOCK_BYTES >= self.size_bytes:
            return
        while len(self._blocks) >= BLOCKS_MAX:
            _, oldest = self._blocks.popitem(last=False)
            oldest.cancel()
        self._blocks[number] = asyncio.create_task(self._fetch(number), name="a block of a file")

    async def _fetch(self, number: int) -> bytes:
        start = number * BLOCK_BYTES
        stop = min(start + BLOCK_BYTES, self.size_bytes)
        parts = read_span(self._transport.sibling(), self._file_uuid, self.content, start, stop)
        return b"".join([part async for part in parts])
