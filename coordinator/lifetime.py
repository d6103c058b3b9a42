"""How long a process lives: until SIGTERM or SIGINT asks it to drain and end."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator


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
