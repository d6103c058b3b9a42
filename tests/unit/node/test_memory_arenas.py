"""The threads of a node share a few arenas of memory, whatever the number of threads."""

import subprocess
import sys

SCRIPT = """
import ctypes, sys, threading
from node.server import keep_large_buffers
if sys.argv[1] == "kept":
    keep_large_buffers()
met, kept = threading.Barrier(13), []
def allocate():
    kept.append(bytearray(100_000))
    met.wait()
    met.wait()
for _ in range(12):
    threading.Thread(target=allocate).start()
met.wait()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
met.wait()
"""


def arenas(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", SCRIPT, how], check=True, capture_output=True, timeout=60)
    return done.stdout.count(b"<heap nr=")


def test_threads_share_a_few_arenas() -> None:
    assert arenas("as it is") > 4
    assert arenas("kept") <= 4
