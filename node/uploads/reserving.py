"""What an upload may have of its bucket's quota, as the log has reserved it. No I/O here.

A declared size is reserved by the log itself. Of a size that nobody declared the holder reserves before other
nodes get bytes: what is told of a request's length, else a little ahead of what comes.
"""

from collections.abc import Awaitable, Callable

from msgspec import UNSET

from ca.errors import PayloadTooLarge, RateLimited
from coordinator.model.records import UploadRecord
from node.http.ranges import SIZE_BYTES_MAX

RESERVED_AHEAD_BYTES = 16 << 20  # for a body that does not tell its length
NO_ROOM = (PayloadTooLarge, RateLimited)  # what the log says when the quota has no room for more, or not yet


def reserved_stop(record: UploadRecord) -> int:
    """Up to where there may be bytes of the upload on several nodes; SIZE_BYTES_MAX without a bound."""
    if record.size_bytes is not None or record.reserved_bytes is UNSET:
        return SIZE_BYTES_MAX
    return record.reserved_bytes


async def reserve_ahead(reserve: Callable[[int], Awaitable[None]], offset: int) -> None:
    """For more bytes than came; for those that came where the bucket is nearly full. Raises NO_ROOM."""
    try:
        await reserve(min(offset + RESERVED_AHEAD_BYTES, SIZE_BYTES_MAX))
    except NO_ROOM:
        await reserve(offset)
