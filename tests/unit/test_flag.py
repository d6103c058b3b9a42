"""The flag that signals set in `filestore dev`."""

import subprocess
import sys
from pathlib import Path

WAITER = """
import signal, time
from deploy.processes import Flag
flag, until_s = Flag(), time.monotonic() + 1
signal.signal(signal.SIGALRM, lambda *_: flag.set())
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
while time.monotonic() < until_s:
    for _ in range(1000):
        flag.clear()
    flag.wait(0.001)
signal.setitimer(signal.ITIMER_REAL, 0)
print("over")
"""
ENDS_S = 20.0


def test_signal_that_comes_in_the_middle_of_anything_stops_nobody() -> None:
    """`make` hands on what its group has got already, and Ctrl-C may be pressed twice."""
    done = subprocess.run(
        [sys.executable, "-c", WAITER],
        stdout=subprocess.PIPE,
        timeout=ENDS_S,
        check=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert done.stdout == b"over\n"
