"""A file that is being downloaded, in two files next to its target.

NAME.part has its full size from the start, and NAME.part.state lists the ranges that have arrived.

Bytes are synced before the state lists them, so that they survive a power cut. The state is on disk before
the file grows: a NAME.part with content but without a state belongs to another program, and is not changed.
"""

import asyncio
import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from filestore_client.base.durable import sync_directory, write_durable, write_sparse
from filestore_client.base.errors import ChecksumMismatch, Conflict
from filestore_client.base.records import Content
from filestore_client.base.spans import Coverage

STATE_BYTES_MAX = 1 << 20  # a download has some hundreds of spans; a longer file is not ours
RECORD_S = 1.0  # what kill -9 costs at most
RECORD_BYTES = 128 << 20
HASH_BYTES = 8 << 20  # read back at once by the thread that hashes, a part at a time
READ_BYTES = 1 << 20
NAME_BYTES_MAX = 200  # leaves room for what is appended, within the 255 of a file system

Progress = Callable[[int, int | None], None]
T = TypeVar("T")


class PartialState(msgspec.Struct, frozen=True):
    """Which content this is part of, and the spans of it that are durable."""

    sha256: str
    size_bytes: int
    spans: list[tuple[int, int]]


class PartialFile:
    """Use as an async context manager: it locks NAME.part, and on leaving records what has come.

    Raises Conflict when another process downloads to the same name, or what is there is not of a download of
    ours; OSError naming NAME.part.
    """

    def __init__(
        self, target: Path, content: Content, progress: Progress, *, threads: int, replaces: bool = True
    ) -> None:
        """`replaces`: whether a file that has the name by the end gives way."""
        name = target.name
        if len(os.fsencode(name)) > NAME_BYTES_MAX:
            name = hashlib.sha256(os.fsencode(name)).hexdigest()
        self.path = target.with_name(f"{name}.part")
        self.coverage = Coverage()
        self._target = target
        self._replaces = replaces
        self._state_path = target.with_name(f"{name}.part.state")
        self._content = content
        self._progress = progress
        self._threads = ThreadPoolExecutor(threads + 1, thread_name_prefix="partial")  # one of them hashes
        self._descriptor = -1
        self._recorded_bytes = 0
        self._recorded_at_s = time.monotonic()
        self._is_recording = False
        self._is_over = True  # until there is something of ours to leave
        self._sync_failed = False  # what a second one tells is not true
        self._grown = asyncio.Event()
        self._hash = hashlib.sha256()
        self._hashed_bytes = 0

    async def __aenter__(self) -> Self:
        try:
            await self._run(self._open)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def write_at(self, offset: int, part: bytes) -> None:
        """Keep these bytes; they count as there when this returns, and are durable soon after."""
        await self._run(write_sparse, self._descriptor, part, offset)
        self.coverage.add(offset, offset + len(part))
        self._grown.set()
        self._progress(self.coverage.size_bytes, self._content.size_bytes)
        due_bytes = self.coverage.size_bytes - self._recorded_bytes
        is_due = due_bytes >= RECORD_BYTES or time.monotonic() - self._recorded_at_s >= RECORD_S
        if is_due and not self._is_recording:
            await self._record()

    async def sha256(self) -> str:
        """The checksum of the whole, read back behind the writers; returns after the last byte."""
        while self._hashed_bytes < self._content.size_bytes:
            stop = min(self.coverage.prefix_bytes, self._hashed_bytes + HASH_BYTES)
            if stop > self._hashed_bytes:
                await self._run(self._hash_to, stop)
            else:
                self._grown.clear()
                await self._grown.wait()
        return self._hash.hexdigest()

    async def finish(self, sha256: str) -> None:
        """Give the file its name. Raises ChecksumMismatch for other content; then nothing is left.

        Raises Conflict, and NAME.part stays, if another file must not be replaced, or NAME.part was changed.
        """
        assert self.coverage.size_bytes == self._content.size_bytes
        if sha256 != self._content.sha256:
            await self._run(self._discard)
            raise ChecksumMismatch(
                f"Expected {self._content.size_bytes} bytes with SHA-256 {self._content.sha256},"
                f" got {sha256}."
            )
        await self._run(self._settle)

    def _open(self) -> None:
        mode = self._mode_of_target()
        self._descriptor = self._open_own(0o666 if mode is None else mode | 0o600)
        self._lock()
        found_bytes = os.fstat(self._descriptor).st_size
        state = self._read_state()
        if state is None:
            if found_bytes:
                raise self._is_not_ours()
        elif (state.sha256, state.size_bytes) == (self._content.sha256, self._content.size_bytes):
            spans = ((start, min(stop, found_bytes)) for start, stop in state.spans)
            self.coverage = Coverage((start, stop) for start, stop in spans if start < stop)
        else:
            found_bytes = 0
        os.ftruncate(self._descriptor, min(found_bytes, self._content.size_bytes))
        self._is_over = False
        self._recorded_bytes = self.coverage.size_bytes
        write_durable(self._state_path, msgspec.json.encode(self._state()))
        self._preallocate()
        self._progress(self.coverage.size_bytes, self._content.size_bytes)

    def _open_own(self, mode: int) -> int:
        """Neither where a link leads, nor a file that others own or have under another name."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self.path, flags, mode)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise Conflict(f"{self.path} is a link. Remove it, or choose another name.") from error
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_nlink > 1:
            os.close(descriptor)
            raise self._is_not_ours()
        return descriptor

    def _is_not_ours(self) -> Conflict:
        return Conflict(f"{self.path} is not an unfinished download. Remove it, or choose another name.")

    def _mode_of_target(self) -> int | None:
        """The permissions of the file that will be replaced, which its successor keeps."""
        try:
            return self._target.stat().st_mode & 0o777
        except OSError:
            return None

    def _lock(self) -> None:
        """Two writers would rename a file that the other still writes to."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_same = self._is_in_place()
        except BlockingIOError:
            is_same = False
        if not is_same:
            os.close(self._descriptor)
            self._descriptor = -1
            raise Conflict(f"Another process is downloading to {self.path}.")

    def _read_state(self) -> PartialState | None:
        """None without one; one that cannot be used stands for no content at all."""
        try:
            with self._state_path.open("rb") as file:
                state = msgspec.json.decode(file.read(STATE_BYTES_MAX), type=PartialState)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return PartialState("", 0, [])
        if any(not 0 <= start < stop <= state.size_bytes for start, stop in state.spans):
            return PartialState("", 0, [])
        return state

    def _state(self) -> PartialState:
        return PartialState(self._content.sha256, self._content.size_bytes, self.coverage.spans)

    def _preallocate(self) -> None:
        """A full disk is known before the first byte comes, and leaves what was there before."""
        found_bytes = os.fstat(self._descriptor).st_size
        if self._content.size_bytes == 0:
            return
        try:
            os.posix_fallocate(self._descriptor, 0, self._content.size_bytes)
        except OSError:
            os.ftruncate(self._descriptor, found_bytes)
            raise

    async def _record(self) -> None:
        """Sync, then say so. The spans are those from before the sync."""
        self._is_recording = True
        try:
            state = self._state()
            self._recorded_bytes = self.coverage.size_bytes
            await self._run(self._sync_and_write, state)
            self._recorded_at_s = time.monotonic()
        finally:
            self._is_recording = False

    def _sync(self, sync: Callable[[int], None]) -> None:
        """Raises OSError; from then on nothing more counts as durable, and it comes again."""
        if self._sync_failed:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        try:
            sync(self._descriptor)
        except OSError:
            self._sync_failed = True
            raise

    def _sync_and_write(self, state: PartialState) -> None:
        self._sync(os.fdatasync)
        with suppress(OSError):  # an older state is true as well: this costs only the resumption
            write_durable(self._state_path, msgspec.json.encode(state))

    def _hash_to(self, stop: int) -> None:
        while self._hashed_bytes < stop:
            part = os.pread(self._descriptor, min(READ_BYTES, stop - self._hashed_bytes), self._hashed_bytes)
            if not part:
                raise OSError(errno.EIO, "the file became shorter while it was written")
            self._hash.update(part)
            self._hashed_bytes += len(part)

    def _settle(self) -> None:
        if (mode := self._mode_of_target()) is not None:
            os.fchmod(self._descriptor, mode)
        self._sync(os.fsync)
        if not self._is_in_place():
            self._is_over = True
            self._state_path.unlink(missing_ok=True)  # it does not describe what is there now
            raise Conflict(f"{self.path} was replaced while it was written. Download the file again.")
        if self._replaces:
            self.path.replace(self._target)
        else:
            self._take_name()
        self._is_over = True
        self._state_path.unlink(missing_ok=True)
        sync_directory(self._target.parent)

    def _is_in_place(self) -> bool:
        """Whether NAME.part is the file that was written."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self.path.lstat())
        except FileNotFoundError:
            return False

    def _take_name(self) -> None:
        """A rename that replaces nothing: a second name, and the first one goes."""
        try:
            os.link(self.path, self._target, follow_symlinks=False)
        except OSError as error:
            if isinstance(error, FileExistsError) or os.path.lexists(self._target):
                raise Conflict(
                    f"{self._target} was created in the meantime. The downloaded content is in {self.path}."
                ) from error
            self.path.replace(self._target)  # a file system without hard links
        else:
            self.path.unlink()

    def _discard(self) -> None:
        self._is_over = True
        self.path.unlink(missing_ok=True)
        self._state_path.unlink(missing_ok=True)

    async def _run(self, work: Callable[..., T], *arguments: object) -> T:
        """Blocking work in a thread of ours. Raises its OSError with the name of the file."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
        except OSError as error:
            if error.filename is not None or error.errno is None:
                raise
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    async def _close(self) -> None:
        """Record what has come; no thread writes any more when the descriptor goes."""
        try:
            if self._descriptor >= 0 and not self._is_over:
                await self._leave()
        finally:
            await asyncio.to_thread(self._threads.shutdown)
            if self._descriptor >= 0:
                os.close(self._descriptor)

    async def _leave(self) -> None:
        if self.coverage.size_bytes == 0:
            await self._run(self._discard)  # a file as large as the content that holds nothing of it
        else:
            with suppress(OSError):  # what ended the download counts; an older state is true as well
                await self._record()
