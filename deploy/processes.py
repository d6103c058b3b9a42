"""Child processes of a cluster on this machine: with a log file, ended with their parent, asked if ready.

Tested by tests/cluster/test_development.py.
"""

import ctypes
import http.client
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ca.errors import InvalidRequest, Unavailable

LOOPBACK = "127.0.0.1"
POLL_S = 0.05
PROBE_TIMEOUT_S = 2.0
STOP_TIMEOUT_S = 25.0  # a node drains for at most 20 s
PORTS_VARIABLE = "FILESTORE_PORTS"
# Below the range of outgoing connections, so that a port is still free at the next start.
PORTS_DEFAULT = "20000-32000"
ATTEMPTS = 1000  # to find ports; in the second half those count too that were given lately
GIVEN_MAX = 512  # ports that are remembered as given
PR_SET_PDEATHSIG = 1
OURS = (sys.executable, "-m", "deploy.entry")  # the command of this version

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_given: deque[int] = deque(maxlen=GIVEN_MAX)


class Flag:
    """A flag that a signal handler sets and the main thread waits for.

    It has no lock: a second signal during the handler, or during the wait, would wait for the lock forever,
    as in threading.Event.
    """

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        """Whether it was set, and not cleared since."""
        return self._is_set

    def set(self) -> None:
        """Any number of times."""
        self._is_set = True

    def clear(self) -> None:
        """Reset the flag."""
        self._is_set = False

    def wait(self, timeout_s: float) -> bool:
        """Whether it is set, at the latest after `timeout_s`."""
        until_s = time.monotonic() + timeout_s
        while not self._is_set and (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(POLL_S, left_s))
        return self._is_set


@dataclass(slots=True)
class Child:
    """A process of ours, with the last lines that it logged at hand."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def describe_end(self) -> str:
        """How it ended, on one line."""
        code = self.process.returncode
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        return f"{self.name} {how}; see {self.log}"


def start_child(name: str, arguments: Sequence[str], log: Path, *, program: Sequence[str] = OURS) -> Child:
    """Start `filestore ARGUMENTS`, its output appended to the log. It gets SIGKILL when this process ends.

    `program`: the command of another version.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # Ctrl-C on the terminal is for us; we tell the children in order.
            process_group=0,
            preexec_fn=_end_with_parent,
            # Nothing of ours trusts the system's certificates, which aiohttp would read twice at its import.
            env=os.environ | {"SSL_CERT_FILE": os.devnull},
        )
    return Child(name, process, log)


def _end_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def stop_children(children: Sequence[Child], *, hurry: Callable[[], bool] = lambda: False) -> None:
    """SIGTERM to all, then SIGKILL to those still there after the time for draining, or in a hurry."""
    for child in children:
        if child.runs:
            child.process.terminate()
    give_up_at = time.monotonic() + STOP_TIMEOUT_S
    while any(child.runs for child in children) and time.monotonic() < give_up_at and not hurry():
        time.sleep(POLL_S)
    for child in children:
        if child.runs:
            child.process.kill()
        child.process.wait()


def wait_until(
    condition: Callable[[], bool], *, what: str, timeout_s: float, watched: Sequence[Child] = ()
) -> None:
    """Poll until it holds. Raises Unavailable when a watched child ends, or after the timeout."""
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        for child in watched:
            if not child.runs:
                raise Unavailable(f"{child.describe_end()}: {last_line(child.log)}")
        if time.monotonic() > give_up_at:
            raise Unavailable(f"{what}: not within {timeout_s:g} s.")
        time.sleep(POLL_S)


def is_ready(port: int, context: ssl.SSLContext, *, host: str = LOOPBACK) -> bool:
    """Whether /readyz on this port of this machine answers 200."""
    connection = http.client.HTTPSConnection(host, port, timeout=PROBE_TIMEOUT_S, context=context)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def free_ports(count: int) -> list[int]:
    """Return consecutive loopback ports that are free now, from FILESTORE_PORTS (`LOW-HIGH`).

    It avoids ports that it has returned recently: their user may be about to listen there, or to restart.

    Raises Unavailable if none are found, InvalidRequest if the variable is not such a range.
    """
    low, high = _port_range(os.environ.get(PORTS_VARIABLE, PORTS_DEFAULT))
    for attempt in range(ATTEMPTS):
        base = random.randint(low, max(low, high - count))
        found = range(base, base + count)
        if (2 * attempt >= ATTEMPTS or not set(found) & set(_given)) and all(map(_is_free, found)):
            _given.extend(found)
            return list(found)
    raise Unavailable(f"No {count} free ports in a row between {low} and {high}.")


def _port_range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    if not (low.isdecimal() and high.isdecimal() and 1 <= int(low) <= int(high) <= 65535):
        raise InvalidRequest(f"{PORTS_VARIABLE}: expected two ports such as {PORTS_DEFAULT}.")
    return int(low), int(high)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def last_line(log: Path) -> str:
    """The end of a log, for an error message."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else "it logged nothing"
