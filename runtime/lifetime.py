"""How long a process lives: until SIGTERM or SIGINT asks it to drain and end."""

import asyncio
import contextlib
import errno
import gc
import logging
import resource
import signal
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, Final, TypeVar

from ca.errors import Unavailable

DESCRIPTORS_ENOUGH: Final = 1 << 20  # the assumed number for an unlimited process
DESCRIPTORS_FEW: Final = 4096  # below it fewer uploads, blobs and connections are kept than were planned for
KNOWN_S: Final = 5.0  # of a start, for the cluster to be known: a client that finds no port asks elsewhere
COLLECT_AFTER: Final = 50_000  # objects more than before; 700 are what five commands under way hold

_log = logging.getLogger(__name__)
_Error = TypeVar("_Error", bound=BaseException)


def raise_descriptor_limit() -> int:
    """Allow this process as many descriptors as the system lets it have; how many that is.

    Distributions keep the soft limit at 1024 for programs that use select(); ours do not.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems refuse an unlimited soft limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit = descriptor_limit()
    if limit < DESCRIPTORS_FEW:
        _log.warning(
            "this process may open only %d files and will refuse clients early (raise LimitNOFILE= in "
            "its systemd unit)",
            limit,
        )
    return limit


def descriptor_limit() -> int:
    """How many descriptors this process may have open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_ENOUGH if soft == resource.RLIM_INFINITY else min(soft, DESCRIPTORS_ENOUGH)


def out_of_descriptors(error: OSError) -> Unavailable | None:
    """Return an error for clients if the process or the system has too many open files; otherwise None."""
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return None
    return Unavailable("This process has too many open files.", retry_after_s=2)


def quieten_collector() -> None:
    """Let the garbage collector run less often, and skip existing objects. For servers, once started.

    It examines the objects of running requests: with hundreds of requests it took 8 % of a leader's time, and
    the full collections, which go through every module, are pauses. Reference counts free nearly all objects
    of a request; those in cycles wait a little longer.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


@contextlib.contextmanager
def stop_signal() -> Iterator[asyncio.Event]:
    """An event that is set when the process is asked to end.

    Only in the main thread, inside the event loop.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def wait_for_first(*waits: Coroutine[Any, Any, object], timeout_s: float | None = None) -> None:
    """Returns when one of them has, or after `timeout_s`; the others are cancelled.

    Raises nothing of what they raise.
    """
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end_tasks(tasks)
        for task in tasks:
            _ = task.cancelled() or task.exception()


async def end_tasks(tasks: Iterable["asyncio.Future[Any]"]) -> None:
    """Cancel these tasks and wait until they have ended. Raises none of their errors.

    They are not awaited: a cancellation of the caller would look the same. asyncio logs errors of tasks that
    are never retrieved.
    """
    ended = list(tasks)
    for task in ended:
        task.cancel()
    if ended:
        await asyncio.wait(ended)


def first_in(group: BaseExceptionGroup, kind: type[_Error]) -> _Error | None:
    """One exception of this kind in a group, however deep."""
    for error in group.exceptions:
        if isinstance(error, kind):
            return error
        if isinstance(error, BaseExceptionGroup) and (found := first_in(error, kind)) is not None:
            return found
    return None
