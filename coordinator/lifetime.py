"""How long a process lives: until SIGTERM or SIGINT asks it to drain and end."""

import asyncio
import contextlib
import resource
import signal
from collections.abc import Iterator
from typing import Final

DESCRIPTORS_ENOUGH: Final = 1 << 20  # what an unlimited process is taken to have


def raise_descriptor_limit() -> int:
    """Allow this process as many descriptors as the system lets it have; how many that is.

    Distributions keep the soft limit at 1024 for programs that use select(); ours do not.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems refuse an unlimited soft limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return descriptor_limit()


def descriptor_limit() -> int:
    """How many descriptors this process may have open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_ENOUGH if soft == resource.RLIM_INFINITY else min(soft, DESCRIPTORS_ENOUGH)


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
