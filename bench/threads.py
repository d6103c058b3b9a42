"""The quickest way that we know to do what a PUT cannot go without, as a yardstick: three threads, no server.

    python -m bench.threads DIRECTORY PORT

For each connection one thread receives lots of a few MiB, one hashes them with sha256, one writes them past
the page cache; the file is synced and the request answered. What `bench.bare` leaves out is left out here
too, and so are the event loop and TLS. The same in C was some 3 % quicker: what this misses of the slower of
disk and sha256, each alone, is the price of having both, and the sender, on the same cores. It serves until
standard input ends.
"""

import hashlib
import mmap
import os
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from deploy.processes import LOOPBACK

LOT_BYTES = 4 << 20
LOTS = 6
ALIGNED_BYTES = 4096  # O_DIRECT asks for it: of the memory, of the offset and of the length
HEAD_BYTES_MAX = 65536
END = b"\r\n\r\n"


def open_past_cache(directory: str | Path) -> int:
    """A file without a name, to be written past the page cache. Raises OSError where that cannot be."""
    return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600)


@dataclass(slots=True)
class Lot:
    """Some bytes of a body, and where they belong."""

    buffer: memoryview
    count: int = 0
    offset: int = 0


Lots = SimpleQueue[Lot | None]  # None ends it


class Put:
    """One connection, with one request on it."""

    def __init__(self, directory: str, connection: socket.socket) -> None:
        self._connection = connection
        self._sha256 = hashlib.sha256()
        self._file = open_past_cache(directory)
        self._idle, self._received, self._hashed = Lots(), Lots(), Lots()
        for _ in range(LOTS):
            self._idle.put(Lot(memoryview(mmap.mmap(-1, LOT_BYTES))))

    def serve(self) -> None:
        """Until the answer is sent."""
        stages = [
            threading.Thread(target=_stage, args=(self._received, self._hash, self._hashed)),
            threading.Thread(target=_stage, args=(self._hashed, self._write, self._idle)),
        ]
        for stage in stages:
            stage.start()
        size_bytes = self._receive()
        while self._idle.get() is not None:
            pass
        os.ftruncate(self._file, size_bytes)
        os.fsync(self._file)
        self._connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        self._connection.close()
        os.close(self._file)

    def _receive(self) -> int:
        """The body, lot by lot, however it ends; how long it was."""
        try:
            size_bytes, rest = self._head()
            offset = 0
            while offset < size_bytes:
                lot = self._idle.get()
                assert lot is not None
                lot.offset, lot.count = offset, min(LOT_BYTES, size_bytes - offset)
                lot.buffer[: len(rest)] = rest
                came, rest = len(rest), b""
                while came < lot.count:
                    came += self._taken(lot.buffer[came : lot.count])
                offset += lot.count
                self._received.put(lot)
        finally:
            self._received.put(None)
        return size_bytes

    def _head(self) -> tuple[int, bytes]:
        """How long the body is, and what has come of it: less than a lot."""
        head = b""
        while END not in head:
            head += self._connection.recv(HEAD_BYTES_MAX)
        lines, _, rest = head.partition(END)
        length = next(line for line in lines.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return int(length.partition(b":")[2]), rest

    def _taken(self, room: memoryview) -> int:
        count = self._connection.recv_into(room, len(room), socket.MSG_WAITALL)
        if not count:
            raise EOFError("the body broke off")
        return count

    def _hash(self, lot: Lot) -> None:
        self._sha256.update(lot.buffer[: lot.count])

    def _write(self, lot: Lot) -> None:
        aligned_bytes = -(-lot.count // ALIGNED_BYTES) * ALIGNED_BYTES
        written = os.pwrite(self._file, lot.buffer[:aligned_bytes], lot.offset)
        assert written == aligned_bytes, "the disk is full"


def _stage(source: Lots, work: Callable[[Lot], None], sink: Lots) -> None:
    """In a thread: what comes is worked on and handed on, until the end."""
    try:
        while (lot := source.get()) is not None:
            work(lot)
            sink.put(lot)
    finally:
        sink.put(None)


def accept(directory: str, listener: socket.socket) -> None:
    """Every connection in a thread of its own."""
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=Put(directory, connection).serve, daemon=True).start()


if __name__ == "__main__":
    _, _directory, _port = sys.argv
    _listener = socket.create_server((LOOPBACK, int(_port)))
    threading.Thread(target=accept, args=(_directory, _listener), daemon=True).start()
    print("{}", flush=True)  # as a loader says that it is ready
    sys.stdin.read()
