"""Segments that a partial replica gets one by one.

They come from this node's own damaged copy before anything is asked of others, and from damaged copies of
others when no node holds the blob whole.
"""

from collections.abc import AsyncIterator, Awaitable, Callable

from node.base.spans import Span
from node.diskio.executor import DiskWorkers
from node.peer.salvage import Copies
from node.storage.partial_blob import Partial

BATCH_SEGMENTS: int = 4  # written before they are made durable together: 16 MiB

Pace = Callable[[int], Awaitable[None]]  # returns when so many bytes are paid for


async def fill(disk: DiskWorkers, partial: Partial, copies: Copies, pace: Pace) -> None:
    """Bring what is missing and can be had; `partial.missing()` tells afterwards what could not.

    Raises InsufficientStorage, Internal.
    """
    for span in partial.missing():
        async for first, stop in _written(disk, partial, copies, pace, span):
            await disk.run(partial.keep, first, stop)


async def _written(
    disk: DiskWorkers, partial: Partial, copies: Copies, pace: Pace, span: Span
) -> AsyncIterator[Span]:
    """Spans of segments that were written, one after the other, to be kept."""
    first = index = span[0]
    while index < span[1]:
        content = await copies.segment(index)
        if content is not None:
            await pace(len(content))
            writer = await disk.run(partial.writer, index, index + 1)
            await disk.run(writer.write, content)
        if first < index and (content is None or index - first >= BATCH_SEGMENTS):
            yield first, index
            first = index
        index += 1
        if content is None:
            first = index
    if first < index:
        yield first, index
