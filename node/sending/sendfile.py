"""Files go into plain sockets by sendfile(2): their bytes never enter this process.

sendfile works on a duplicate of the transport's descriptor, past the transport's buffer, which has to be
empty. The loop's own sendfile is no alternative: uvloop lacks it, and falls back to copies. No other code
writes to a connection while its response goes out.

Tested by tests/unit/node/content/test_local_downloads.py.
"""

import asyncio
import enum
import errno
import os
import socket

from node.diskio.executor import DiskWorkers
from node.diskio.fs import MEDIUM_ERRORS
from node.sending.stall_watch import StallWatch
from node.storage.segments import BlobDamaged, OpenBlob
from web.app import ClientGone

BURST_BYTES = 1 << 20  # of one connection; then the others on the loop have their turn
_REFUSED = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


def send_now(transport: asyncio.Transport, head: bytes, blob: OpenBlob, start: int, stop: int) -> int:
    """Send the head and bytes from `start` up to `stop`, as many as the socket accepts at once.

    At most a burst. Returns how many bytes of both went out; 0 if the first have to come from the disk, or
    the socket accepts none. Errors show again when the caller sends the rest. The transport's buffer must be
    empty.
    """
    burst_stop = min(start + BURST_BYTES, stop)
    if not blob.is_cached(start, burst_stop):
        return 0
    facts = transport.get_extra_info("socket")
    borrowed = socket.socket(facts.family, facts.type, facts.proto, facts.fileno())
    sent_bytes = 0
    try:
        sent_bytes = borrowed.send(head, socket.MSG_MORE | socket.MSG_DONTWAIT)
        if sent_bytes == len(head):
            sent_bytes += os.sendfile(borrowed.fileno(), blob.fd, start, burst_stop - start)
    except OSError:
        pass
    finally:
        borrowed.detach()  # the transport owns the descriptor
    return sent_bytes


class SendfileRefused(Exception):
    """The kernel cannot use sendfile for this file or socket: send copies from where it stopped."""


class _Outcome(enum.Enum):
    SENT = enum.auto()
    MORE = enum.auto()
    FULL = enum.auto()  # the socket accepts nothing more now
    COLD = enum.auto()  # the next bytes have to come from the disk first


class FileSender:
    """Sends on one connection past its transport.

    Sent bytes are counted in `watch`, also if an error is raised.
    """

    def __init__(self, transport: asyncio.Transport, disk: DiskWorkers, watch: StallWatch) -> None:
        self._transport = transport
        self._disk = disk
        self._watch = watch
        plain = transport.get_extra_info("socket")
        self._socket = socket.socket(plain.family, plain.type, plain.proto, os.dup(plain.fileno()))
        self._fd = self._socket.fileno()
        self._at = 0
        self._stop = 0
        self._warm_until = 0

    def close(self) -> None:
        """Close the duplicate; the connection stays."""
        self._socket.close()

    def send_head(self, head: bytes) -> bytes:
        """Send what fits now, together with the first bytes of the file, and return what did not fit.

        Raises ClientGone.
        """
        self._require_open()
        try:
            return head[self._socket.send(head, socket.MSG_MORE) :]
        except BlockingIOError:
            return head
        except OSError as error:
            raise ClientGone("the client disconnected before its answer") from error

    async def send(self, blob: OpenBlob, start: int, stop: int) -> None:
        """Send bytes `start` to `stop` (excluded), which are verified, at the client's pace.

        Raises ClientGone, BlobDamaged if the disk no longer has them, SendfileRefused.
        """
        self._at = self._warm_until = start
        self._stop = stop
        try:
            while self._at < self._stop:
                outcome = self._send_burst(blob)
                if outcome is _Outcome.FULL:
                    await self._send_when_writable(blob)
                elif outcome is _Outcome.COLD:
                    await self._send_cold(blob)
                elif outcome is _Outcome.MORE:
                    await asyncio.sleep(0)
        except ClientGone:
            raise
        except OSError as error:
            raise _meaning(error, blob) from error

    def _send_burst(self, blob: OpenBlob) -> _Outcome:
        self._require_open()
        if self._at >= self._warm_until:
            burst_until = min(self._at + BURST_BYTES, self._stop)
            if not blob.is_cached(self._at, burst_until):
                return _Outcome.COLD
            self._warm_until = burst_until
        try:
            self._advance(blob, os.sendfile(self._fd, blob.fd, self._at, self._warm_until - self._at))
        except BlockingIOError:
            return _Outcome.FULL
        return _Outcome.SENT if self._at == self._stop else _Outcome.MORE

    async def _send_cold(self, blob: OpenBlob) -> None:
        """Send one burst from a thread, which may wait for the disk, but never for the client."""
        size_bytes = min(BURST_BYTES, self._stop - self._at)
        try:
            self._advance(blob, await self._disk.run(os.sendfile, self._fd, blob.fd, self._at, size_bytes))
        except BlockingIOError:
            await self._send_when_writable(blob)

    async def _send_when_writable(self, blob: OpenBlob) -> None:
        """Send in the loop's callback, without waking this task, until the end or a cold page."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._watch.start()
        self._watch.waiter = waiter
        loop.add_writer(self._fd, self._on_writable, blob, waiter)
        try:
            await waiter
        finally:
            self._watch.waiter = None
            loop.remove_writer(self._fd)

    def _on_writable(self, blob: OpenBlob, waiter: asyncio.Future[None]) -> None:
        if waiter.done():
            return
        try:
            outcome = self._send_burst(blob)
        except (OSError, BlobDamaged) as error:
            waiter.set_exception(error)
            return
        if outcome in (_Outcome.SENT, _Outcome.COLD):
            waiter.set_result(None)

    def _advance(self, blob: OpenBlob, count: int) -> None:
        if count == 0:
            raise blob.damage_error("is shorter than its sidecar says")
        self._at += count
        self._watch.written_bytes += count

    def _require_open(self) -> None:
        """Check that the transport is open.

        Its duplicate outlives it, and could send bytes to a client that was cut off.
        """
        if self._transport.is_closing():
            raise ClientGone("the connection is closing")


def _meaning(error: OSError, blob: OpenBlob) -> Exception:
    if error.errno in MEDIUM_ERRORS:
        return blob.damage_error(f"cannot be read: {os.strerror(error.errno or 0)}")
    if error.errno in _REFUSED:
        return SendfileRefused(os.strerror(error.errno or 0))
    return ClientGone(f"the client disconnected: {os.strerror(error.errno or 0)}")
