"""The small blobs of a disk, in packs.

    DIR/packs/NUMBER.pack     records (`node/packs/record.py`); a process appends to its own pack only
    DIR/packs/index.sqlite    where each blob lies (`node/packs/index.py`)
    DIR/packs/*.lock          which processes use the index (`node/packs/users.py`)

When `put` returns, its blobs are durable, and every process of the node finds them. After `remove`, no
process finds the blob. If the index or its newest rows are lost, a removed blob may come back as an unclaimed
one (`node/custody/orphans.py`).

Content is compared with its SHA-256 when it is read, as the index may be wrong. If the index contradicts a
pack, every process stops using it and closes it (`heal`), and the last one to do so rebuilds it from the
packs. Until then each question raises IndexDamaged; nothing counts as missing.

A pack that its process has left, for any reason, is never appended to again: the bytes after its last sync
are unknown. All calls block. For any thread.

Tested by tests/unit/node/packs/test_pack_store.py.
"""

import errno
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ca.secretfiles import sync_directory
from node.diskio.durable import Disk, Octets
from node.diskio.fs import MEDIUM_ERRORS, unlink
from node.packs import agreement
from node.packs.catching_up import PAGE_BYTES, PackCatchUp, batches
from node.packs.index import DAMAGED, IndexDamaged, PackIndex
from node.packs.pack_file import PackReader, PackWriter, is_in_use, open_pack, pack_name
from node.packs.record import (
    HEAD_BYTES,
    HEADER_BYTES,
    PackInvalid,
    PackRecord,
    Place,
    encode,
    payload_of,
)
from node.packs.rows import PackedBlob, PackFacts, record_of
from node.packs.users import IndexUsers

BLOB_BYTES_MAX: Final = 128 << 10  # measured: see docs/decisions/storage.md
PACK_BYTES_MAX: Final = 256 << 20
PACK_RECORDS_MAX: Final = 100_000  # which a process has in memory until the pack is sealed
READERS_MAX: Final = 64  # packs that are kept open for reading
DEAD_SHARE: Final = 0.4  # a pack with a larger share of dead bytes is worth rewriting
SEALED_BYTES_MIN: Final = 8 << 20  # a smaller pack is not sealed early: it may still fill up
INDEX: Final = "index.sqlite"

_STEP_BYTES: Final = 1 << 20  # that are copied under one sync
_STEP_BLOBS: Final = 256

_log = logging.getLogger(__name__)


Unpack = Callable[[PackedBlob, bytes], bytes | None]  # None: it is not the blob


def named_content(found: PackedBlob, payload: bytes) -> bytes | None:
    """Return the payload if it has its name: the row with its checksum may be that of another blob."""
    return payload if hashlib.sha256(payload).digest() == found.sha256 else None


class RecordDamaged(Exception):
    """No copy of a blob is what was written; `blob` is one of them. The text is its SHA-256."""

    def __init__(self, blob: PackedBlob) -> None:
        super().__init__(blob.sha256.hex())
        self.blob = blob


class PackStore:
    """The packs of one directory. One per process and directory."""

    def __init__(
        self,
        directory: Path,
        *,
        disk: Disk | None = None,
        pack_bytes_max: int = PACK_BYTES_MAX,
        payload_bytes_max: int = BLOB_BYTES_MAX,
        unpack: Unpack = named_content,
        notes_arrivals: bool = True,
    ) -> None:
        """Open them, and read what the index lacks. Raises OSError.

        `unpack` returns the content of a payload. `notes_arrivals`: blobs are unclaimed until the log is seen
        to know them.
        """
        self._disk = disk or Disk()
        self._pack_bytes_max = pack_bytes_max
        self._payload_bytes_max, self._unpack = payload_bytes_max, unpack
        self._notes_arrivals = notes_arrivals
        self._index_path = directory / INDEX
        directory.mkdir(mode=0o700, exist_ok=True)
        sync_directory(directory.parent)
        self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._appending = threading.Lock()
        self._reading = threading.Lock()
        self._writer: PackWriter | None = None
        self._readers: dict[int, PackReader] = {}
        try:
            self._users = IndexUsers(self._directory)
            try:
                self.index = self._opened_index()
            except BaseException:
                self._users.close()
                raise
        except BaseException:
            os.close(self._directory)
            raise

    def heal(self) -> bool:
        """Replace the index if it was found damaged; whether it was.

        Every process of the node has to call this again and again: the last one to close the index rebuilds
        it from the packs, and the others open it then. Raises OSError while it is not rebuilt.
        """
        if self.index.is_usable:
            return False
        with self._appending:
            with suppress(OSError):  # of a pack without its index all is read
                self._end_pack()
            self.index.mark()  # once more: the disk may have taken no mark before
            self.index.close()
            self._users.leave()
            self.index = self._opened_index()
        return True

    def close(self) -> None:
        """Seal the pack that is appended to, and give everything back; again is harmless."""
        if self._directory < 0:
            return
        try:
            with self._appending:
                self._end_pack()
        except OSError as error:  # it is read whole when the packs are opened again
            _log.warning("a pack is not known to be sealed", extra={"reason": error.strerror})
        with self._reading:
            self._readers.clear()
        self.index.close()
        self._users.close()
        os.close(self._directory)
        self._directory = -1

    def put(self, blobs: Sequence[tuple[bytes, Octets]]) -> None:
        """Store payloads, each with a SHA-256, under one sync. Raises OSError, and then none of them counts.

        One that is there already is stored again, in place of what was there.
        """
        assert all(len(payload) <= self._payload_bytes_max for _, payload in blobs)
        self.index.require_usable()  # before waiting for a rebuilding, and before anything is written
        with self._appending:
            self.index.require_usable()  # it may have been rebuilt, or not, while this waited
            writer, _, records = self._append(blobs)
            with self._indexing(writer):
                self.index.store(writer.number, records, stop=writer.durable_offset, at_ns=time.time_ns())

    def find(self, sha256: bytes) -> PackedBlob | None:
        """Return the position of a blob, without reading its bytes."""
        return self.index.find(sha256)

    def load(self, sha256: bytes) -> tuple[PackedBlob, bytes] | None:
        """A blob and its content, which has this SHA-256; None when it is not here.

        Raises RecordDamaged, OSError.
        """
        copies = self.index.copies(sha256)
        while copies:
            for found in copies:
                content = self._content(found)
                if content is not None:
                    return found, content
            before, copies = copies, self.index.copies(sha256)
            if _places(before) == _places(copies):  # else it was rewritten elsewhere, or removed, meanwhile
                for found in copies:
                    agreement.require_place(self.index, self.reader, found)
                raise RecordDamaged(copies[0])
        return None

    def read(self, sha256: bytes) -> bytes | None:
        """The content alone."""
        loaded = self.load(sha256)
        return None if loaded is None else loaded[1]

    def read_damaged(self, found: PackedBlob) -> bytes:
        """Return the bytes in the place of a blob, unverified; none if its pack is gone.

        Raises OSError if they cannot be read now; a later attempt may succeed.
        """
        try:
            reader = self.reader(found.place.pack)
        except FileNotFoundError:
            return b""
        except PackInvalid as error:
            raise OSError(errno.EIO, str(error)) from error
        return os.pread(reader.descriptor, found.length, found.place.offset + HEAD_BYTES)

    def reaches(self, found: PackedBlob) -> bool:
        """Whether the pack of a blob is there, and long enough; nothing of it is read. Raises OSError."""
        with suppress(FileNotFoundError, PackInvalid):
            if self.reader(found.place.pack).size_bytes >= found.place.offset + HEAD_BYTES + found.length:
                return True
        agreement.require_place(self.index, self.reader, found)
        return False

    def drop_pages(self, found: PackedBlob) -> None:
        """Have the next reading of a blob be one of the medium. Raises OSError."""
        start = found.place.offset // PAGE_BYTES * PAGE_BYTES  # the kernel keeps a page that is named in part
        stop = -(-(found.place.offset + HEAD_BYTES + found.length) // PAGE_BYTES) * PAGE_BYTES
        with suppress(FileNotFoundError, PackInvalid):
            reader = self.reader(found.place.pack)
            os.posix_fadvise(reader.descriptor, start, stop - start, os.POSIX_FADV_DONTNEED)

    def drop_gone(self) -> None:
        """Close packs that another process has removed: until then their room is not given back."""
        with self._reading:
            for number, reader in list(self._readers.items()):
                if reader.is_gone:
                    del self._readers[number]

    def remove(self, sha256: bytes, *, unless: Callable[[], bool] = lambda: False) -> bool:
        """Remove a blob; return False if there was none, or `unless` returns True.

        A blob that arrived or was affirmed since `unless` was called stays, too. Raises OSError.
        """
        was_there = False
        while (copies := self.index.copies(sha256)) and not unless():
            if self.index.take_out(copies):
                was_there = True
            elif self.index.copies(sha256) == copies:
                raise self.index.damage_error("it does not find what it gave")
        return was_there

    def after(self, sha256: bytes, limit: int) -> list[tuple[bytes, int]]:
        """The next blobs in the order of their SHA-256, with their lengths."""
        return self.index.after(sha256, limit)

    def copy_some(self, number: int, start: int) -> tuple[int, int] | None:
        """Copy some of what counts in a sealed pack from `start` on: where to go on, bytes that were written.

        None when there is nothing more. It may be left at any time, and a crash at any point leaves every
        blob in one of the two packs at least. A damaged record is passed over. Raises OSError.
        """
        if self._is_appended_to(number):
            return None
        batch = next(batches(self.index.list_pack(number, start=start, limit=_STEP_BLOBS), _STEP_BYTES), None)
        if batch is None:
            return None
        payloads = [(found, payload) for found in batch if (payload := self._payload(found)) is not None]
        return batch[-1].place.offset + 1, self._copy(payloads) if payloads else 0

    def drop_if_empty(self, number: int) -> int:
        """Remove a sealed pack in which no record counts; return its bytes, or 0 if it stays.

        The pack is read, to check that each of its records is known to be removed. Raises OSError.
        """
        size_bytes = 0
        with self._appending:
            if self._is_appended_to(number) or self.index.list_pack(number, limit=1):
                return 0
            known = [pack for pack in self.index.packs() if pack.number == number]
            if not all(agreement.may_go(self.index, self.reader, pack) for pack in known):
                return 0
            with suppress(FileNotFoundError):
                size_bytes = os.stat(pack_name(number), dir_fd=self._directory).st_size
            unlink(pack_name(number), parent=self._directory)
            self._disk.fsync(self._directory)
            self.index.drop(number)
        self._forget_reader(number)
        return size_bytes

    def check_pack(self, pack: PackFacts) -> int:
        """Compare a pack with the index, in both directions: how many bytes were read.

        Raises IndexDamaged, OSError.
        """
        return agreement.check_pack(self.index, self.reader, pack)

    def seal(self) -> None:
        """Begin a new pack with the next blob, so that the present one may be rewritten. Raises OSError."""
        with self._appending:
            self._end_pack()

    def seal_if_mostly_dead(self) -> None:
        """Seal the pack of this process if it is worth rewriting, or has to be. Raises OSError.

        Each worker does this for its own pack, because no other process can.
        """
        writer = self._writer
        if writer is None:
            return
        if writer.number in self.index.purged_packs():
            self.seal()
            return
        if writer.durable_offset < SEALED_BYTES_MIN:
            return
        if any(is_mostly_dead(pack) for pack in self.index.packs() if pack.number == writer.number):
            self.seal()

    def _copy(self, payloads: Sequence[tuple[PackedBlob, bytes]]) -> int:
        """Append copies of blobs, and remove their old records; return the bytes written.

        A blob that another process removes in the meantime stays removed.
        """
        with self._appending:
            writer, began, records = self._append([(found.sha256, payload) for found, payload in payloads])
            moves = list(zip([found for found, _ in payloads], records, strict=True))
            with self._indexing(writer):
                self.index.move(writer.number, moves, stop=writer.durable_offset)
            return writer.durable_offset - began

    def _append(self, payloads: Sequence[tuple[bytes, Octets]]) -> tuple[PackWriter, int, list[PackRecord]]:
        """Write records, each with a SHA-256, under one sync: into which pack, from where on, as what.

        The index does not know of them yet. The caller holds the lock.
        """
        writer = self._pack_to_append_to()
        records, pieces = list[PackRecord](), list[Octets]()
        began = at = writer.durable_offset
        for sha256, payload in payloads:
            record, head = encode(writer.header.marker, sha256, payload, at)
            records.append(record)
            pieces += head, payload
            at = record.stop
        writer.append(records, pieces)
        return writer, began, records

    @contextmanager
    def _indexing(self, writer: PackWriter) -> Iterator[None]:
        """Around telling the index what was appended: if that fails, no later record may vouch for it."""
        try:
            yield
        except OSError:
            writer.is_broken = True  # the index knows this pack up to there, and it accepts no more
            raise

    def _pack_to_append_to(self) -> PackWriter:
        """Return the pack of this process, a new one if it is full or broken. Raises OSError."""
        writer = self._writer
        if writer is not None and (writer.is_broken or self._is_full(writer)):
            self._end_pack()
            writer = None
        if writer is None:
            writer = self._writer = PackWriter(self._directory, self._disk)
        return writer

    def _is_full(self, writer: PackWriter) -> bool:
        return writer.durable_offset >= self._pack_bytes_max or len(writer.records) >= PACK_RECORDS_MAX

    def _is_appended_to(self, number: int) -> bool:
        """Whether a process does, be it this one or another."""
        try:
            return is_in_use(self.reader(number))
        except (FileNotFoundError, PackInvalid):
            return False

    def _end_pack(self) -> None:
        """Append to the present pack no more; one that cannot be sealed is read whole when that is wanted."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            if writer.durable_offset == HEADER_BYTES:  # none of its blobs was affirmed
                unlink(pack_name(writer.number), parent=self._directory)
                return
            writer.seal()
        except OSError as error:
            _log.warning("a pack has no index at its end", extra={"reason": error.strerror})
        finally:
            writer.close()
        self.index.seal(writer.number)

    def _content(self, found: PackedBlob) -> bytes | None:
        """Return the content of a record; None if it is not the blob, or the pack is gone."""
        payload = self._record(found)
        return None if payload is None else self._unpack(found, payload)

    def _payload(self, found: PackedBlob) -> bytes | None:
        """Return the payload of a record, like `_content`."""
        payload = self._record(found)
        return payload if payload is not None and self._unpack(found, payload) is not None else None

    def _record(self, found: PackedBlob) -> bytes | None:
        """Return the payload of a record; None if it does not match the checksum in its row."""
        try:
            reader = self.reader(found.place.pack)  # open while it is referenced: a rewriting may forget it
            return payload_of(reader.descriptor, record_of(found))
        except (FileNotFoundError, PackInvalid):
            return None
        except OSError as error:
            if error.errno in MEDIUM_ERRORS:
                return None
            raise

    def reader(self, number: int) -> PackReader:
        """A pack, open for reading. Raises PackInvalid, FileNotFoundError, OSError."""
        with self._reading:
            reader = self._readers.pop(number, None) or open_pack(number, self._directory)
            self._readers[number] = reader  # behind those that were wanted less lately
            while len(self._readers) > READERS_MAX:
                del self._readers[next(iter(self._readers))]
            return reader

    def _forget_reader(self, number: int) -> None:
        with self._reading:
            self._readers.pop(number, None)

    def _opened_index(self) -> PackIndex:
        """Open the index, and add missing records; rebuild it if it is damaged and unused. Raises OSError."""
        with self._users.opening() as is_alone:
            return self._sound_index(is_alone=is_alone)

    def _sound_index(self, *, is_alone: bool) -> PackIndex:
        try:
            return self._caught_up(is_alone=is_alone)
        except IndexDamaged as error:
            if not is_alone:
                told = (
                    "the index of the packs is damaged, and will be rebuilt when no process of the "
                    "node uses it"
                )
                raise IndexDamaged(errno.EUCLEAN, told) from error
            _log.error("the index of the packs is damaged and is being rebuilt", extra={"reason": str(error)})
        for suffix in ("", "-wal", "-shm", DAMAGED):  # the mark goes last
            with suppress(FileNotFoundError):
                os.unlink(f"{INDEX}{suffix}", dir_fd=self._directory)
        index = self._caught_up(is_alone=is_alone)
        _log.warning("the index of the packs was rebuilt", extra={"blobs": index.totals()[0]})
        return index

    def _caught_up(self, *, is_alone: bool) -> PackIndex:
        index = PackIndex(self._index_path, notes_arrivals=self._notes_arrivals)
        try:
            PackCatchUp(self._directory, index, self.reader, self._disk).run(is_alone=is_alone)
        except BaseException:
            index.close()
            raise
        return index


def is_mostly_dead(pack: PackFacts) -> bool:
    """Whether more than DEAD_SHARE of the records in a pack are dead."""
    return pack.dead_bytes > DEAD_SHARE * (pack.dead_bytes + pack.live_bytes)


def _places(copies: Sequence[PackedBlob]) -> list[Place]:
    return [each.place for each in copies]
