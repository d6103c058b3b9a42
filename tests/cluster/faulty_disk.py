"""System calls of a running process that are slow or fail, by strace; a test is skipped where it cannot."""

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.processes import wait_until

ATTACH_TIMEOUT_S = 20.0
DETACH_TIMEOUT_S = 20.0


@contextmanager
def injected(pid: int, fault: str, log: Path, *paths: Path) -> Iterator[None]:
    """While it lasts, the calls of `fault` (such as `fdatasync:error=EIO`) on these files go wrong.

    `log` gets a line for each as it returns, before the process goes on.
    """
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("no strace command here")
    calls = fault.partition(":")[0]
    files = [option for path in paths for option in ("-P", str(path))]
    command = [strace, "-f", "-y", "-p", str(pid), "-o", str(log), *files]
    command += ["-e", f"trace={calls}", "-e", f"inject={fault}"]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        wait_until(
            lambda: tracer.poll() is not None or _is_traced(pid, tracer.pid),
            what="strace",
            timeout_s=ATTACH_TIMEOUT_S,
        )
        if tracer.poll() is not None:
            pytest.skip("strace may not attach to processes here")
        yield
    finally:
        if tracer.poll() is None:
            tracer.send_signal(signal.SIGINT)  # it lets the process go on as it was
        try:
            tracer.communicate(timeout=DETACH_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            # It can miss the end of a thread that it had killed, and wait for ever; nobody else gets the exit
            # code of the process then.
            tracer.kill()
            tracer.communicate()


def _is_traced(pid: int, tracer: int) -> bool:
    """Whether every thread of the process is."""
    return all(
        f"TracerPid:\t{tracer}\n" in (thread / "status").read_text()
        for thread in Path(f"/proc/{pid}/task").iterdir()
    )
