"""Notify systemd about this process, by the protocol of sd_notify(3).

systemd is notified when the process serves, reloads and stops, with a status line. If it watches the process
(`WatchdogSec=` of the unit), it receives a keep-alive message regularly. The message is sent while the event
loop turns and a thread that waits for the disk accepts jobs. A thread that the kernel blocks for a device
accepts none. This process is not at fault then: it could not even be killed, and would wait again after a
restart.

Without `NOTIFY_SOCKET` in the environment, nothing is sent.
"""

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from runtime.background import Work

BEAT_S: Final = 5.0  # between two sentences; more often where the watchdog is impatient
BEATS_PER_WATCHDOG: Final = 4  # one that is late, and one that is lost, do no harm
STATUS_CHARS_MAX: Final = 200
CHANGE_TIMEOUT_S: Final = 1.0  # for a change; one that did not go by then goes before the next beat
CHANGES_MAX: Final = 8  # that have not gone: of more, the newest

_log = logging.getLogger(__name__)


class ServiceManager:
    """Notify systemd about this process, if systemd has asked for it."""

    def __init__(self) -> None:
        address = os.environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._watchdog_s = _watchdog_s()
        self._status = ""
        self._untold = deque[Sequence[str]](maxlen=CHANGES_MAX)

    @property
    def listens(self) -> bool:
        """Whether there is one."""
        return bool(self._address)

    @property
    def beat_s(self) -> float:
        """Return the interval of keep-alive and status messages."""
        if self._watchdog_s is None:
            return BEAT_S
        return min(BEAT_S, self._watchdog_s / BEATS_PER_WATCHDOG)

    def ready(self) -> None:
        """The process serves; after `notify_reloading`, it does so by what it has read."""
        self._change("READY=1")

    def notify_reloading(self) -> None:
        """The process reads again what may change while it runs; `ready` follows."""
        now = f"MONOTONIC_USEC={time.monotonic_ns() // 1000}"
        self._change("RELOADING=1", now)

    def notify_stopping(self) -> None:
        """Report that the process accepts no more requests and stops soon."""
        self._status = "Stopping"
        self._change("STOPPING=1", f"STATUS={self._status}")

    def alive(self) -> None:
        """Report that the process is alive, which resets the watchdog."""
        self._tell_changes()
        self._tell("WATCHDOG=1")

    def show(self, status: str) -> None:
        """How the process is, for `systemctl status`; told when it has changed."""
        line = " ".join(status.split())[:STATUS_CHARS_MAX]
        if line != self._status and self._tell(f"STATUS={line}"):
            self._status = line

    def _change(self, *facts: str) -> None:
        """Send facts that no later message repeats."""
        self._untold.append(facts)
        self._tell_changes(CHANGE_TIMEOUT_S)

    def _tell_changes(self, timeout_s: float = 0.0) -> None:
        """Tell all that did not go, in order, until one does not again."""
        while self._untold and self._tell(*self._untold[0], timeout_s=timeout_s):
            self._untold.popleft()

    def _tell(self, *facts: str, timeout_s: float = 0.0) -> bool:
        """Send a datagram with some assignments; return whether it was sent. Failures are ignored."""
        if not self._address:
            return True
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
                sending.settimeout(timeout_s)
                sending.connect(self._address)
                sending.sendall("\n".join(facts).encode())
        except OSError as error:
            _log.warning("cannot notify the service manager", extra={"reason": error.strerror or str(error)})
            return False
        return True


@contextmanager
def on_hangup(react: Callable[[], None], manager: ServiceManager) -> Iterator[None]:
    """Call `react` on SIGHUP, and notify the manager, instead of ending the process. Like `stop_signal`."""

    def reload() -> None:
        manager.notify_reloading()
        react()
        manager.ready()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


async def keep_informed(
    manager: ServiceManager,
    *,
    thread_name: str,
    take_job: Callable[[], Coroutine[Any, Any, object]],
    status: Callable[[], Awaitable[str]],
) -> None:
    """Tell the manager that this process lives, and how it is, until cancelled; nothing if there is none.

    `take_job` returns when a thread of that name, or one whose name begins so, has done a job that does
    nothing. `status` raises nothing.
    """
    if not manager.listens:
        return
    asked: asyncio.Task[object] | None = None

    async def beat() -> None:
        nonlocal asked
        manager.show(await status())
        asked = asked or asyncio.create_task(take_job(), name="watchdog job")
        await asyncio.wait({asked}, timeout=manager.beat_s / 2)
        if asked.done():
            asked.result()
            asked = None
            manager.alive()
        elif waits_for_device(thread_name):
            manager.alive()

    try:
        await Work("notification of the service manager", beat, every_s=manager.beat_s / 2, fails=()).run()
    finally:
        if asked is not None:
            asked.cancel()


def waits_for_device(thread_name: str) -> bool:
    """Whether the kernel lets no signal reach a thread whose name begins so: it waits for a device."""
    for thread in threading.enumerate():
        if thread.name.startswith(thread_name) and thread.native_id is not None:
            with suppress(OSError, IndexError):
                text = Path(f"/proc/self/task/{thread.native_id}/stat").read_text("ascii", errors="replace")
                if text.rpartition(") ")[2][0] == "D":
                    return True
    return False


def _watchdog_s() -> float | None:
    """After how many seconds of silence this process is ended; None for never."""
    text, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not text.isdecimal() or int(text) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(text) / 1_000_000
