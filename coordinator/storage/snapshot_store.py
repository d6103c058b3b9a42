"""The snapshot files of one member: the one that it offers, and the one that it fetches and installs.

Blocking, real files. A snapshot is a copy of the database, named by the last log entry in it, with a note
that has its size and digest. The note is written first, so a snapshot with its final name is complete.
Snapshots of the same entry from two members have the same rows, but not the same bytes: so parts are also
identified by the digest.

Offered snapshots were checked: their structure, and the digest of their rows, which others may confirm. The
receiver checks both again. An unconfirmed state is marked with its source (`origin`): it is not a witness in
addition to the source.
"""

import logging
import os
import shutil
import sqlite3
import time
import zlib
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ca.errors import InsufficientStorage, Internal, InvalidRequest, NotFound
from ca.secretfiles import SECRET_MODE, reserve_secret, sync_directory, sync_file, write_durable
from coordinator.raft.messages import SnapshotMeta
from coordinator.storage.page_sums import PageSums
from coordinator.storage.pinned_state import PinnedState, examine
from coordinator.storage.snapshot_origins import read_origin, write_origin
from coordinator.storage.state_backup import copy_pinned, copy_settled
from coordinator.storage.state_damage import StateDamaged, damage_in, flaw_in
from coordinator.storage.state_store import Store, members_in
from coordinator.storage.stored_sums import SUMS
from runtime.bounds import Count
from runtime.file_digests import digest_beside, matches_digest, sha256_of
from runtime.json_files import decode_sealed, encode_sealed
from runtime.sqlite import DATABASE_ERRORS
from runtime.stopping import NEVER, Stop

MAKING_NAME = "making"
CHUNK_BYTES_MAX = 1 << 20
SNAPSHOT_BYTES_MAX = 1 << 40  # a terabyte: far beyond any state that SQLite can serve well
# Left free for the log and the database while a snapshot is received or made.
SNAPSHOT_RESERVE_BYTES = 256 << 20

SizeBytes = Annotated[int, Meta(ge=1, le=SNAPSHOT_BYTES_MAX)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]

_log = logging.getLogger(__name__)


class Chunk(Struct, frozen=True, kw_only=True):
    """A part of a snapshot file.

    `size_bytes` and `sha256` are the whole file's, `crc` is the CRC-32 of `data`.
    """

    index: Count
    term: Count
    offset: Annotated[int, Meta(ge=0, le=SNAPSHOT_BYTES_MAX)]
    size_bytes: SizeBytes
    sha256: Sha256
    crc: Annotated[int, Meta(ge=0, lt=2**32)]
    data: Annotated[bytes, Meta(min_length=1, max_length=CHUNK_BYTES_MAX)]
    content: str = ""  # the digest of all its rows
    origin: str = ""  # the source of the state; "" if a majority confirmed it


class _Note(Struct, frozen=True, kw_only=True):
    """The JSON note next to a snapshot file."""

    meta: SnapshotMeta
    size_bytes: SizeBytes
    sha256: Sha256
    content: str = ""  # as in Chunk
    origin: str = ""


@dataclass(frozen=True, slots=True)
class UnpublishedSnapshot:
    """A snapshot that is not published yet. `content`: the digest of its rows; `sha256`: of its bytes."""

    meta: SnapshotMeta
    content: str
    sha256: str


@dataclass(frozen=True, slots=True)
class SnapshotDisk:
    """The steps of an installation, so that a test can stop at any of them."""

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file, in place of an existing one."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def sync(self, directory: Path) -> None:
        """Make the names in a directory durable."""
        sync_directory(directory)


class IncomingSnapshot:
    """A snapshot that is received in parts, each at `offset`. One fetcher at a time."""

    def __init__(self, directory: Path, meta: SnapshotMeta, source: str = "") -> None:
        self._meta = meta
        self._source = source  # who offers it
        self._origin_path = directory / f"{_name(meta)}.origin"
        self._path = directory / f"{_name(meta)}.part"
        self._note_path = directory / f"{_name(meta)}.part.json"
        self._verified_path = directory / f"{_name(meta)}.verified"
        self._note: _Note | None = None
        self.offset = 0  # the position of the next part
        if self._verified_path.exists():
            self.offset = self._verified_path.stat().st_size
            return
        note = _read_note(self._note_path)
        if note is not None and note.meta == meta and self._path.exists():
            self._note = note
            self.offset = self._path.stat().st_size

    @property
    def is_complete(self) -> bool:
        """Return whether every byte is here; `finish` verifies them."""
        return self._is_verified or (self._note is not None and self.offset == self._note.size_bytes)

    def add(self, chunk: Chunk) -> None:
        """Append a part.

        Raises InvalidRequest for a damaged part, or one that is not the next; nothing changes then. But if
        the part belongs to another file with the same name, the received bytes are dropped, `offset` is 0
        again, and the next parts may come from there. Raises InsufficientStorage if the file has no room.
        """
        if (chunk.index, chunk.term) != (self._meta.index, self._meta.term):
            raise InvalidRequest(f"snapshot: {chunk.index}-{chunk.term} is not {_name(self._meta)}.")
        if self._is_verified or not _is_sound(chunk):
            raise InvalidRequest("snapshot: a part is damaged or arrived too late.")
        note = _Note(
            meta=self._meta,
            size_bytes=chunk.size_bytes,
            sha256=chunk.sha256,
            content=chunk.content,
            origin=chunk.origin if chunk.content else self._source,
        )
        if self._note is not None and note != self._note:
            self.restart()
            raise InvalidRequest("snapshot: its source now has another file with the same name.")
        if chunk.offset != self.offset:
            raise InvalidRequest(f"snapshot: the next offset is {self.offset}, not {chunk.offset}.")
        if self._note is None:
            self._begin(note)
        with open(self._path, "r+b", buffering=0) as file:
            file.seek(self.offset)
            _write_all(file.fileno(), chunk.data)
        self.offset += len(chunk.data)

    def finish(self, stop: Stop = NEVER) -> None:
        """Verify the received file.

        Raises InvalidRequest, and removes it all, unless it is the requested snapshot; OSError, and removes
        it too, if the disk refuses; WorkStopped, and removes nothing. Afterwards it is durable and waits for
        SnapshotStore.install.
        """
        if self._is_verified:
            sync_directory(self._path.parent)  # the previous attempt may have failed there
            return
        assert self.is_complete, f"{self.offset} bytes of a snapshot are not all"
        assert self._note is not None
        examined = examine(self._path, stop)
        if examined.sha256 != self._note.sha256:
            self.restart()
            raise InvalidRequest("snapshot: the received file differs from the announced one.")
        try:
            found = describe(self._path)
        except (*DATABASE_ERRORS, InvalidRequest) as error:
            self.restart()
            raise InvalidRequest("snapshot: the received file is not a state of a coordinator.") from error
        if found != self._meta:
            self.restart()
            raise InvalidRequest(f"snapshot: the received file holds {_name(found)}, or other members.")
        if examined.flaw or self._note.content not in ("", examined.content):
            self.restart()
            damage = examined.flaw or "its rows differ from the announced ones"
            raise InvalidRequest(f"snapshot: the received file is damaged: {damage}.")
        try:
            sync_file(self._path)
        except OSError:
            self.restart()  # the same bytes would seem to be durable at the next attempt
            raise
        write_origin(self._origin_path, self._note.origin)
        self._path.replace(self._verified_path)  # its note stays, as the installed file is verified again
        sync_directory(self._path.parent)

    def restart(self) -> None:
        """Drop the received bytes."""
        self._note_path.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        self._note = None
        self.offset = 0

    @property
    def is_vouched(self) -> bool:
        """Return whether a majority had the same state as the verified snapshot."""
        return self._origin_path.exists() and read_origin(self._origin_path) == ""

    @property
    def _is_verified(self) -> bool:
        return self._verified_path.exists()

    def _begin(self, note: _Note) -> None:
        self._path.unlink(missing_ok=True)  # first: a file without its note leaves room for this one
        _check_room(self._path.parent, note.size_bytes)
        write_durable(self._note_path, encode_sealed(note), mode=SECRET_MODE)
        reserve_secret(self._path)
        self._note = note


class SnapshotStore:
    """`directory` has the offered and the received snapshot; `state_path` is the database of this member."""

    def __init__(self, directory: Path, state_path: Path, *, disk: SnapshotDisk | None = None) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._state_path = state_path
        self._intent_path = state_path.with_name(state_path.name + ".install")
        self._origin_path = state_path.with_name(state_path.name + ".origin")
        self._disk = disk or SnapshotDisk()
        self._outgoing: _Note | None = None
        self._origin = read_origin(self._origin_path)
        self.served_at_s = float("-inf")  # when a part was last fetched, by the monotonic clock
        (directory / MAKING_NAME).unlink(missing_ok=True)  # the remains of a crash
        for path in sorted(directory.glob("*.snapshot")):
            note = _read_note(path.with_suffix(".json"))
            if note is not None and path.stat().st_size == note.size_bytes:
                self._outgoing = max(self._outgoing or note, note, key=lambda n: (n.meta.index, n.meta.term))

    def pin(self, file: PageSums | None = None) -> PinnedState:
        """Pin the present state. Raises sqlite3.Error. `file` as in Pinned."""
        return PinnedState(self._state_path, file)

    def flaw(self) -> str:
        """Return the structural fault of the state, which is in use; "" for none. See flaw_in."""
        return flaw_in(self._state_path, at_rest=False)

    def make(self, pinned: PinnedState, stop: Stop = NEVER) -> UnpublishedSnapshot:
        """Write the state as a snapshot for `publish`, which takes seconds to minutes. Closes `pinned`.

        Raises InsufficientStorage, OSError, WorkStopped, and StateDamaged if the copy is no sound database.
        """
        making = self._directory / MAKING_NAME
        try:
            with closing(pinned):
                making.unlink(missing_ok=True)
                _check_room(self._directory, self._state_path.stat().st_size)
                if pinned.file is None:
                    copy_pinned(pinned.db, making, stop=stop)
                else:
                    copy_settled(pinned.file, making, stop=stop)
            found = examine(making, stop)
            if found.flaw:
                raise StateDamaged(f"state.sqlite is damaged: its copy says {found.flaw}")
            meta = describe(making)
            if meta.index != pinned.index:
                raise Internal(f"The copy of the state at {pinned.index} holds {_name(meta)}.")
            return UnpublishedSnapshot(meta, found.content, found.sha256)
        except DATABASE_ERRORS as error:
            raise damage_in(error) or error from error

    def publish(self, made: UnpublishedSnapshot, *, origin: str) -> SnapshotMeta:
        """Offer a snapshot from `make`, in place of the earlier one. `origin` as in Chunk."""
        meta, making = made.meta, self._directory / MAKING_NAME
        if meta == self.newest():
            making.unlink()  # the existing one may be in transfer, with other bytes
            return meta
        note = _Note(
            meta=meta,
            size_bytes=making.stat().st_size,
            sha256=made.sha256,
            content=made.content,
            origin=origin,
        )
        path = self._directory / f"{_name(meta)}.snapshot"
        write_durable(path.with_suffix(".json"), encode_sealed(note), mode=SECRET_MODE)
        making.replace(path)
        sync_directory(self._directory)
        self._outgoing = note
        self._remove_outgoing(but=_name(meta))
        return meta

    def origin(self) -> str:
        """Return the source of this member's state; see `coordinator.storage.snapshot_origins`."""
        return self._origin

    def note_confirmed(self) -> None:
        """Note that a majority has the same state as this member: it is its own from now on."""
        self._origin = ""
        self._disk.remove(self._origin_path)
        self._disk.sync(self._state_path.parent)

    def newest(self) -> SnapshotMeta | None:
        """Return the snapshot that can be offered."""
        return None if self._outgoing is None else self._outgoing.meta

    def chunk(self, index: int, term: int, offset: int) -> Chunk:
        """Return a part of the snapshot of this entry. Raises NotFound if it is gone.

        A request beyond its end comes from a member with a part of another file: it gets the first part,
        whose digest shows that.
        """
        self.served_at_s = time.monotonic()
        note = self._outgoing
        if note is None or (index, term) != (note.meta.index, note.meta.term):
            raise NotFound(f"There is no snapshot {index}-{term} here.")
        if not 0 <= offset < note.size_bytes:
            offset = 0
        try:
            with open(self._directory / f"{_name(note.meta)}.snapshot", "rb", buffering=0) as file:
                data = os.pread(file.fileno(), CHUNK_BYTES_MAX, offset)
        except FileNotFoundError:
            raise NotFound(f"The snapshot {index}-{term} is no longer here.") from None
        return Chunk(
            index=index,
            term=term,
            offset=offset,
            size_bytes=note.size_bytes,
            sha256=note.sha256,
            crc=zlib.crc32(data),
            data=data,
            content=note.content,
            origin=note.origin,
        )

    def forget_outgoing(self) -> None:
        """Delete the offered snapshot, as no member needs it."""
        self._outgoing = None
        self._remove_outgoing(but="")

    def begin_incoming(self, meta: SnapshotMeta, source: str = "") -> IncomingSnapshot:
        """Begin or resume fetching a snapshot; remove the received parts of others."""
        for pattern in ("*.part", "*.part.json", "*.verified", "*.origin"):
            for path in sorted(self._directory.glob(pattern)):
                if path.name.split(".")[0] != _name(meta):
                    path.unlink()
        return IncomingSnapshot(self._directory, meta, source)

    def install(self, meta: SnapshotMeta, store: Store) -> None:
        """Make the snapshot that `Incoming.finish` verified the database of `store`, which must not be used.

        The first step decides it: after a crash, `recover` finishes at the next start.
        """
        self.place(meta)
        store.close()
        self.recover()
        self._origin = read_origin(self._origin_path)
        store.reopen()
        assert store.applied() == (meta.index, meta.term), f"{store.applied()} is not {_name(meta)}"

    def place(self, meta: SnapshotMeta) -> None:
        """Decide that the verified snapshot becomes the database: `recover` puts it there."""
        # First: an own state that counts as a copy only confirms less.
        with suppress(FileNotFoundError):  # here before a crash
            self._disk.replace(self._directory / f"{_name(meta)}.origin", self._origin_path)
            self._disk.sync(self._state_path.parent)
        note_path = self._directory / f"{_name(meta)}.part.json"
        digest_path = digest_beside(self._intent_path)
        if (note := _read_note(note_path)) is not None:
            write_durable(digest_path, f"{note.sha256}  {self._intent_path.name}\n".encode(), SECRET_MODE)
        else:
            digest_path.unlink(missing_ok=True)  # of an earlier installation
        self._disk.replace(self._directory / f"{_name(meta)}.verified", self._intent_path)
        self._disk.sync(self._state_path.parent)
        self._disk.sync(self._directory)
        note_path.unlink(missing_ok=True)

    def find_unfinished(self) -> SnapshotMeta | None:
        """Return the snapshot of an interrupted installation; None if there is none.

        An invalid file there is moved aside, and the state stays as it was before. Blocks, and reads all of
        it. Raises OSError.
        """
        if not self._intent_path.exists():
            return None
        try:
            if not (why := flaw_in(self._intent_path, at_rest=True, deep=True)):
                if matches_digest(self._intent_path):
                    return describe(self._intent_path)
                why = "it differs from the received file"
        except (*DATABASE_ERRORS, InvalidRequest) as error:
            why = str(error)
        damaged_path = self._intent_path.with_name(f"{self._intent_path.name}.damaged")
        self._disk.replace(self._intent_path, damaged_path)
        self._disk.sync(damaged_path.parent)
        _log.error(
            "the snapshot that was being installed is damaged (%s) and is kept in %s: this coordinator "
            "continues from the previous state, and fetches the snapshot again. Check its disk, and "
            "delete the file",
            why,
            damaged_path,
        )
        return None

    def recover(self) -> None:
        """Finish an interrupted installation that `find_unfinished` found, before the database is opened."""
        if not self._intent_path.exists():
            return
        # Durable before the rename: otherwise the new database would use the old WAL.
        self._disk.remove(self._sidecar("-wal"))
        self._disk.remove(self._sidecar("-shm"))
        self._disk.remove(self._sidecar(SUMS))
        self._disk.sync(self._state_path.parent)
        self._disk.replace(self._intent_path, self._state_path)
        self._disk.sync(self._state_path.parent)
        digest_beside(self._intent_path).unlink(missing_ok=True)

    def _sidecar(self, ending: str) -> Path:
        return self._state_path.with_name(self._state_path.name + ending)

    def _remove_outgoing(self, *, but: str) -> None:
        # The snapshot first, also after a power cut: a note alone is harmless.
        for ending in (".snapshot", ".json"):
            found = [path for path in self._directory.glob(f"*{ending}") if path.stem != but]
            void = [path for path in sorted(found) if not path.name.endswith(".part.json")]
            for path in void:
                path.unlink(missing_ok=True)
            if void:
                sync_directory(self._directory)


def describe(path: Path) -> SnapshotMeta:
    """Describe a snapshot file without changing it. Raises DATABASE_ERRORS; InvalidRequest for no state.

    It must not be used for an open database, as the file is assumed to be at rest.
    """
    address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as db:
        row = db.execute("SELECT log_index, term FROM applied").fetchone()
        if row is None:
            raise InvalidRequest("snapshot: it holds no entry.")
        return SnapshotMeta(row[0], row[1], members_in(db))


def damage_of(path: Path, *, deep: bool) -> str:
    """Return the fault of a snapshot file, "" for none. `deep` reads all of it."""
    note = _read_note(path.with_suffix(".json"))
    if note is None:
        return "has no note that describes it"
    if path.stat().st_size != note.size_bytes:
        return f"has {path.stat().st_size} bytes, its note says {note.size_bytes}"
    if deep and sha256_of(path) != note.sha256:
        return "does not match the sha256 in its note"
    return ""


def _name(meta: SnapshotMeta) -> str:
    return f"{meta.index}-{meta.term}"


def _is_sound(chunk: Chunk) -> bool:
    """Check the bounds of a chunk, which need not come from a decoder."""
    return (
        0 < chunk.size_bytes <= SNAPSHOT_BYTES_MAX
        and 0 < len(chunk.data) <= CHUNK_BYTES_MAX
        and 0 <= chunk.offset <= chunk.size_bytes - len(chunk.data)
        and zlib.crc32(chunk.data) == chunk.crc
    )


def _check_room(directory: Path, size_bytes: int) -> None:
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < size_bytes + SNAPSHOT_RESERVE_BYTES:
        raise InsufficientStorage(
            f"There is no room for a snapshot of {size_bytes} bytes: {free_bytes} are free."
        )


def _read_note(path: Path) -> _Note | None:
    try:
        return decode_sealed(path.read_bytes(), _Note)
    except (OSError, msgspec.MsgspecError):
        return None


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
