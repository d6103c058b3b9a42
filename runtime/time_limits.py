"""The longest that a client waits without progress. Shared by every step of one request, across rooms.

Each step of a request waits for others: for coordinators, for members of an upload, for the node that holds
it. Whatever bound such a wait has of its own, it takes no longer than is left of PATIENCE_S (`bounded_s`), so
what waits one after the other does not add up, however many steps there are. The time begins anew with
progress (`moved`), which is, and nothing else is:

- the client sent bytes, or this disk took them; while the client is waited for no time passes
  (`client_sends`): the pace of bodies has bounds of its own, `web/rate_limits.py`;
- the log told where the upload stands that the request is for, or took a change of it;
- a member of the upload has more bytes durable than ever before, or has put the content into place, or has
  taken some of a copy;
- a span of a file was hashed that has to be;
- the node that the request was passed on to says that it lives: that one has the same bound.

To ask again, or somebody else, is no progress, and neither is any answer that a request only looks at. Work
of this machine's own disk has no part in it: a disk that hangs is found out by
`node/membership/disk_monitor.py`; neither have downloads (`own_bounds`). What no client waits for has no
patience, and keeps its own bounds; so has what a request has left behind, once it is answered.
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
    """What is left of one request's; `is_over` when it was answered. While `rests`, no time passes."""

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
        moved()


@contextmanager
def own_bounds() -> Iterator[None]:
    """What is done within keeps to its own bounds alone: a download asks one replica after the other."""
    with client_sends():
        yield


def failing(error: BaseException) -> None:
    """The answer is decided, this error: what is done on the way out is no progress, and has what is left.

    Not where a client went away, which waits for nothing.
    """
    if isinstance(error, FilestoreError) and (patience := _PATIENCE.get()) is not None:
        patience.is_failing = True


def moved(*, allow_s: float = 0.0) -> None:
    """The request that is served now got further; its next step may take so long, where that is more."""
    patience = _PATIENCE.get()
    if patience is not None and not patience.is_failing:
        patience.ends_at_s = patience.loop.time() + max(PATIENCE_S, allow_s)


def is_client_waiting() -> bool:
    """Whether this is done for a client that waits now."""
    patience = _PATIENCE.get()
    return patience is not None and not patience.is_over and not patience.rests


def bounded_s(timeout_s: float) -> float:
    """How long a wait may take that has so long by itself; 0 when the client has waited long enough."""
    patience = _PATIENCE.get()
    if patience is None or patience.is_over or patience.rests:
        return timeout_s
    return min(timeout_s, max(patience.ends_at_s - patience.loop.time(), 0.0))
