"""The longest time that a client waits without progress. Shared by every step of a request, across rooms.

Each step of a request waits for others: for coordinators, for members of an upload, for the node that holds
it. Each such wait is limited to the rest of PATIENCE_S (`bounded_s`), in addition to its own bound, so that
consecutive waits do not add up. The time restarts with progress (`note_progress`), which is only:

- the client sent bytes, or this disk stored them; while waiting for the client no time passes
  (`client_sends`), as the pace of bodies has its own bounds, `web/rate_limits.py`;

- the log reported the state of the request's upload, or accepted a change of it;

- a member of the upload has more durable bytes than ever before, has put the content into place, or has
  received some of a copy;

- a span of a file that must be hashed was hashed;

- the node that the request was forwarded to reports that it is alive: it has the same bound.

Asking again, or asking another node, is no progress, and neither is a response that a request only looks at.
Work of this machine's own disk is not limited here: `node/membership/disk_monitor.py` detects a disk that
does not respond. Neither are downloads (`own_bounds`). Work that no client waits for keeps its own bounds; so
does work that a request leaves behind after its response.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Final

from ca.errors import FilestoreError

PATIENCE_S: Final = 5.0  # a leader is elected in 3 s, and a member that is silent is left out after as many
SPARE_S: Final = 3.0  # of it, for what a request can do without: a copy beyond the write quorum


class _Patience:
    """The remaining time of one request. `is_over` once it was answered. While `rests`, no time passes."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.ends_at_s = self.loop.time() + PATIENCE_S
        self.is_over = False
        self.rests = 0
        self.is_failing = False


_PATIENCE: ContextVar[_Patience | None] = ContextVar("patience", default=None)


@asynccontextmanager
async def patient() -> AsyncIterator[None]:
    """A client waits for what is done within, and in tasks that begin within."""
    patience = _Patience()
    token = _PATIENCE.set(patience)
    try:
        yield
    finally:
        patience.is_over = True
        _PATIENCE.reset(token)


@contextmanager
def client_sends() -> Iterator[None]:
    """While the client is expected to send: it waits for nothing. What it sent is progress."""
    patience = _PATIENCE.get()
    if patience is None:
        yield
        return
    patience.rests += 1
    try:
        yield
    finally:
        patience.rests -= 1
        note_progress()


@contextmanager
def own_bounds() -> Iterator[None]:
    """Exempt the enclosed work from the limit: a download tries one replica after the other."""
    with client_sends():
        yield


def note_failure(error: BaseException) -> None:
    """Note that the response is decided, this error: cleaning up is no progress, and gets the remaining time.

    Not if a client went away, which waits for nothing.
    """
    if isinstance(error, FilestoreError) and (patience := _PATIENCE.get()) is not None:
        patience.is_failing = True


def note_progress(*, allow_s: float = 0.0) -> None:
    """Restart the time of the current request; its next step may take `allow_s` if that is longer."""
    patience = _PATIENCE.get()
    if patience is not None and not patience.is_failing:
        patience.ends_at_s = patience.loop.time() + max(PATIENCE_S, allow_s)


def is_client_waiting() -> bool:
    """Whether this is done for a client that waits now."""
    patience = _PATIENCE.get()
    return patience is not None and not patience.is_over and not patience.rests


def bounded_s(timeout_s: float) -> float:
    """Limit the timeout of a wait; 0 if the client has waited long enough."""
    patience = _PATIENCE.get()
    if patience is None or patience.is_over or patience.rests:
        return timeout_s
    return min(timeout_s, max(patience.ends_at_s - patience.loop.time(), 0.0))
