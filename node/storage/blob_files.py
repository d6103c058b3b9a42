"""Blobs of one disk that are files of their own: where they lie, how they come in, are read, and go.

    DIR/blobs/ab/cd/SHA256        the content, immutable, mode 0400
    DIR/blobs/ab/cd/SHA256.sums   its sidecar (`node/storage/segments.py`), in place before the content is
    DIR/uploads/UUID/             uploads in progress (`node/staging/upload_store.py`)
    DIR/uploads/incoming-RANDOM   half-written things; removed at start
    DIR/partials/SHA256/          replicas on their way here (`node/storage/partial_store.py`)
    DIR/quarantine/SHA256[.sums]  what must not be served (`node/storage/quarantine.py`)
    DIR/unclaimed/SHA256          what came and the log may not know yet (`node/storage/unclaimed.py`)
    DIR/placing.lock              held while a blob comes or goes (`node/storage/placement_lock.py`)
    DIR/packs/                    small blobs, many to a file (`node/storage/packed_blobs.py`)

The operator's own path to DIR may run over links. Below it, everything is opened relative to a directory
descriptor with no link followed at any level, and created exclusively. All calls block: they belong into
worker threads, and may come from several at once. A power cut never leaves a blob under its name that is not
whole: content and sidecar are synced first, then renamed, then the directories are synced.
"""

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ca.errors import InvalidRequest
from metadata.model.identifiers import is_sha256
from metadata.model.placement import RESERVE_SHARE
from node.diskio.areas import Areas
from node.diskio.durable import DirectorySyncs, Disk, write_all
from node.diskio.fs import (
    MEDIUM_ERRORS,
    READ_FLAGS,
    mkdir,
    opened_directory,
    read_whole,
    storage_error,
    storage_errors,
    unlink,
)
from node.diskio.probe import DiskProbe
from node.diskio.unusable_paths import PoisonItems
from node.storage.leftovers import Leftovers
from node.storage.open_blobs import OpenBlobs
from node.storage.out_of_service import OutOfService
from node.storage.placement_lock import PlacingLock
from node.storage.segments import (
    BlobDamaged,
    BlobMissing,
    FinishedBlob,
    OpenBlob,
    SegmentSums,
    SidecarInvalid,
    decode_sidecar,
    encode_sidecar,
    sidecar_bytes,
)
from node.storage.unclaimed import DIRECTORY as UNCLAIMED
from node.storage.unclaimed import note_unclaimed
from node.storage.verified_segments import TrustedSegments
from runtime.disk import writable_bytes

SPARE_BYTES = 64 << 20  # of a disk, or less of a small one: a node that is full must still record and delete
INCOMING = "incoming-"
# Areas of `PoisonItems`: directories; the index of the packs; blobs that cannot be opened, read, deleted, or
# quarantined (that nobody knows, that are damaged).
PACKS = "packs"
BLOBS, REPLICAS, READS, DROPS, STRAYS, DAMAGED = "blobs", "replicas", "reads", "drops", "strays", "damaged"
SIDECAR = ".sums"
_CREATE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# What opening answers when a link, a file or a broken sector stands where a directory or a file should.
# Without the right to read it is no replica either: all files here are the node's own.
_DAMAGE = MEDIUM_ERRORS | {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.EACCES}


class BlobFiles:
    """The directory of a store, and the blobs in it that are files. One per process. For any thread."""

    def __init__(
        self,
        directory: Path,
        *,
        disk: Disk | None = None,
        trusted: TrustedSegments | None = None,
        maker: str = "",
        is_leftover: Callable[[str], bool] = lambda _name: True,
    ) -> None:
        """Opens the store, makes what is missing of it, and removes what a crash left half-written.

        `maker` marks what this process writes half; `is_leftover` tells by the name, behind INCOMING, what
        nobody works on now.
        """
        self.disk = disk or Disk()
        self.trusted = trusted or TrustedSegments()
        self.syncs = DirectorySyncs()
        self.opened = OpenBlobs()  # for reading; a name that goes or changes hands is forgotten there
        self.poison = PoisonItems()
        self.out_of_service = OutOfService()
        self._maker = maker
        self._uppers_known, self._leaves_known = bytearray(1 << 8), bytearray(1 << 16)  # durable, seen here
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.areas = Areas(self._root)
        self._blobs = self.areas.keep_open("blobs")
        self.uploads_directory = self.areas.keep_open("uploads")
        self.partials_directory = self.areas.keep_open("partials")
        self.quarantine_directory = self.areas.keep_open("quarantine")
        self.unclaimed_directory = self.areas.keep_open(UNCLAIMED)
        self.probe = DiskProbe(self._write_probe)
        self.placing = PlacingLock(self._root)  # a name's content and sidecar come and go together
        self.disk.fsync(self._root)
        self.leftovers = Leftovers(self.uploads_directory, self.poison)
        self.leftovers.find(INCOMING, is_leftover)

    def close(self) -> None:
        """Gives the directories back; blobs that were handed out stay readable."""
        self.opened.close()
        self.placing.close()
        self.areas.close()
        os.close(self._root)

    def open(self, sha256: str) -> OpenBlob:
        """The blob, for reading; the caller closes it.

        Raises BlobMissing, of what was removed from service too; BlobDamaged when what is there cannot be the
        blob (a link, another size than the sidecar says, no sidecar, a bad one). The content itself is
        checked by `OpenBlob.verify_range`.
        """
        require_sha256(sha256)
        try:
            with self.leaf(sha256) as leaf:
                fd = os.open(sha256, READ_FLAGS, dir_fd=leaf)
                try:
                    if self.out_of_service.covers(sha256, fd):
                        raise BlobMissing(sha256)
                    sums = _sums_of(fd, sha256, leaf)
                except BaseException:
                    os.close(fd)
                    raise
        except FileNotFoundError:
            raise BlobMissing(sha256) from None
        except OSError as error:
            if error.errno in _DAMAGE:
                raise BlobDamaged(sha256, f"cannot be opened: {os.strerror(error.errno)}") from error
            raise storage_error(error) from error  # too many open files, say: that is no damage
        return OpenBlob(fd=fd, sha256=sha256, sums=sums, trusted=self.trusted)

    def open_and_cache(self, sha256: str) -> OpenBlob:
        """Open a blob like `open`, and keep it open for the next caller of `opened`."""
        forgotten = self.opened.forgotten
        blob = self.open(sha256)
        try:
            self.opened.keep(blob, forgotten=forgotten)
        except OSError as error:
            blob.close()
            raise storage_error(error) from error
        return blob

    def has(self, sha256: str) -> bool:
        """Whether `open` would succeed."""
        try:
            self.open(sha256).close()
        except (BlobMissing, BlobDamaged):
            return False
        return True

    def has_name(self, sha256: str) -> bool:
        """Whether anything lies in the place of the blob. Raises FilestoreError."""
        require_sha256(sha256)
        try:
            with self.leaf(sha256) as leaf:
                os.stat(sha256, dir_fd=leaf, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise storage_error(error) from error
        return True

    def size_bytes(self, sha256: str) -> int:
        """The blob's size. Raises as `open` does."""
        with self.open(sha256) as blob:
            return blob.size_bytes

    def iterate(self) -> Iterator[str]:
        """The names of all blobs that are regular files, ascending; holds one directory's names at a time.

        A directory that cannot be listed is passed over: it stands among `poison` then.
        """
        for upper in self.listed("", directory_names):
            for leaf in self.listed(upper, directory_names):
                names = self.listed(f"{upper}/{leaf}", _file_names)
                yield from (name for name in names if name.startswith(upper + leaf))

    def look_again(self) -> None:
        """At what could not be listed or opened: whoever is to look at it next may come hours later."""
        for name in sorted(self.poison.names(BLOBS)):
            self.listed(name, directory_names if name.count("/") == 0 else _file_names)
        for sha256 in sorted(self.poison.names(REPLICAS)):
            with self.poison.skipping(REPLICAS, sha256):
                self.has(sha256)

    def delete(self, sha256: str, *, unless: Callable[[], bool] = lambda: False) -> bool:
        """Removes the blob; False if it was not there. Readers that have it open go on.

        It stays, its name durable, and that is False too, when `unless` says so, which is asked while nothing
        comes or goes.
        """
        require_sha256(sha256)
        try:
            with self.placing, self.leaf(sha256) as leaf:
                stays, removed = unless(), False
                if not stays:
                    removed = unlink(sha256, parent=leaf)
                    unlink(sha256 + SIDECAR, parent=leaf)
                    self.forget(sha256)
                    self.syncs.sync(self.disk, leaf, sha256[:4])
            if stays:
                self.sync_placement(sha256)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise storage_error(error) from error
        return removed

    def affirm(self, sha256: str) -> bool:
        """Note that somebody is told that the blob is here: it is kept for a while (`node/storage/pins.py`).

        Its name is durable then: whoever put it into place may not have synced that yet. False if it is not
        here. Raises FilestoreError.
        """
        require_sha256(sha256)
        try:
            with self.placing, self.leaf(sha256) as leaf:
                os.stat(sha256, dir_fd=leaf, follow_symlinks=False)  # a crash may leave the sidecar alone
                os.utime(sha256 + SIDECAR, dir_fd=leaf, follow_symlinks=False)
            self.sync_placement(sha256)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise storage_error(error) from error
        return True

    def affirmed_at_s(self, sha256: str) -> float:
        """When `affirm` was called last, or else when the blob was put into place; since the epoch.

        Of what has no sidecar: when it was written. Raises BlobMissing, FilestoreError.
        """
        require_sha256(sha256)
        try:
            with self.leaf(sha256) as leaf:
                for name in (sha256 + SIDECAR, sha256):
                    try:
                        return os.stat(name, dir_fd=leaf, follow_symlinks=False).st_mtime
                    except FileNotFoundError:
                        continue
        except FileNotFoundError:
            pass
        except OSError as error:
            raise storage_error(error) from error
        raise BlobMissing(sha256)

    def mark(self, sha256: str) -> tuple[int, int] | None:
        """Return a mark that changes when the blob arrives again or is affirmed.

        None if the blob is missing or incomplete. Raises FilestoreError.
        """
        require_sha256(sha256)
        try:
            with self.leaf(sha256) as leaf:
                facts = os.stat(sha256 + SIDECAR, dir_fd=leaf, follow_symlinks=False)
                return facts.st_ino, facts.st_mtime_ns
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(error) from error

    def forget(self, sha256: str) -> None:
        """Forget what is known of the file with this name, as it will be removed or replaced."""
        self.trusted.forget(sha256)
        self.opened.forget(sha256)
        self.out_of_service.forget(sha256)
        for area in (REPLICAS, READS, DROPS, STRAYS, DAMAGED):
            self.poison.clear(area, sha256)

    def identity(self, sha256: str) -> tuple[tuple[int, int], int]:
        """Return the identity of the blob's file, as in `BlobDamaged.file`, and when it was written.

        The time is in ns since the epoch. Raises FileNotFoundError, OSError.
        """
        with self.leaf(sha256) as leaf:
            facts = os.stat(sha256, dir_fd=leaf, follow_symlinks=False)
        return (facts.st_dev, facts.st_ino), facts.st_mtime_ns

    def remove_from_service(self, damage: BlobDamaged) -> bool:
        """Serve the file that was found damaged no more, though it lies in its place; False if another does.

        For a disk that does not let it be moved. Of what cannot be opened nothing need be known. Raises
        OSError when it cannot even be looked at.
        """
        self.trusted.forget(damage.sha256)
        if damage.file is None:
            return True
        file, written_at_ns = self.identity(damage.sha256)
        if damage.file != file:
            return False
        self.out_of_service.add(damage, written_at_ns)
        self.opened.forget(damage.sha256)
        return True

    def reinstate(self, sha256: str) -> bool:
        """Serve again what was removed from service and proved to be sound; whether it can be opened."""
        self.out_of_service.forget(sha256)
        self.poison.clear(DAMAGED, sha256)
        return self.has(sha256)

    def create_incoming(self) -> tuple[str, int]:
        """A new empty file below `uploads_directory`: its name and descriptor. It dies at the next start."""
        name = INCOMING + self._maker + secrets.token_hex(16)
        return name, os.open(name, _CREATE_FLAGS, 0o600, dir_fd=self.uploads_directory)

    def write_incoming(self, content: bytes, *, is_final: bool = True) -> str:
        """A new synced file below `uploads_directory`, to be renamed.

        It is sealed if it `is_final`, else its owner may write to it. Raises OSError.
        """
        name, descriptor = self.create_incoming()
        try:
            write_all(self.disk, descriptor, content, 0)
            if is_final:
                self.seal(descriptor)
            else:
                self.disk.fsync(descriptor)
        except BaseException:
            self.leftovers.remove(name)
            raise
        finally:
            os.close(descriptor)
        return name

    @contextmanager
    def incoming(self, content: bytes, *, is_final: bool = True) -> Iterator[str]:
        """A file of `write_incoming`, which the block renames. If that fails it is removed, now or later."""
        name = self.write_incoming(content, is_final=is_final)
        try:
            yield name
        except BaseException:
            self.leftovers.remove(name)
            raise

    def seal(self, descriptor: int) -> None:
        """Makes a file read-only and durable, its mode included. Raises OSError."""
        os.fchmod(descriptor, 0o400)
        self.disk.fsync(descriptor)

    def install(self, blob: FinishedBlob, sums: SegmentSums, *, source: str, parent: int) -> None:
        """Renames the sealed file `source` in directory `parent` to the blob's name; durable on return.

        The caller vouches for the hash. A blob of that name that is there already is replaced: it holds the
        same bytes, or rotten ones. Raises OSError; the blob may then be in place, but nobody may count on it.
        """
        assert sums.size_bytes == blob.size_bytes
        note_unclaimed(self.unclaimed_directory, blob.sha256)
        with (
            self._made_leaf(blob.sha256) as (upper, leaf),
            self.incoming(encode_sidecar(sums)) as sidecar,  # a journal is synced here, levels included
        ):
            self._sync_levels(blob.sha256, upper)
            with self.placing:
                name = blob.sha256 + SIDECAR
                os.rename(sidecar, name, src_dir_fd=self.uploads_directory, dst_dir_fd=leaf)
                os.rename(source, blob.sha256, src_dir_fd=parent, dst_dir_fd=leaf)
                self.forget(blob.sha256)
            self.syncs.sync(self.disk, leaf, blob.sha256[:4])

    def sync_placement(self, sha256: str) -> None:
        """Makes the blob's name durable once more, after a crash that left that open. Raises OSError."""
        with self._made_leaf(sha256) as (upper, leaf):
            self._sync_levels(sha256, upper)
            self.syncs.sync(self.disk, leaf, sha256[:4])

    def free_bytes(self) -> int:
        """Return how many bytes this process can still write to the file system."""
        return writable_bytes(os.statvfs(self._root))

    def room_bytes(self) -> int:
        """Return the space for uploads and replicas; below 0 if less is left than the node itself needs.

        On a small disk the same rule as in `Candidate.can_repair` applies. Raises OSError.
        """
        return self.free_bytes() - min(SPARE_BYTES, int(self.total_bytes() * RESERVE_SHARE / 2))

    def require_room(self, size_bytes: int) -> None:
        """Raises InsufficientStorage when the disk has no room for so many bytes more; Internal."""
        with storage_errors():
            if self.room_bytes() < size_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def total_bytes(self) -> int:
        """The size of the file system."""
        facts = os.statvfs(self._root)
        return facts.f_blocks * facts.f_frsize

    def _write_probe(self) -> None:
        name = self.write_incoming(b"probe")
        try:
            unlink(name, parent=self.uploads_directory)
        except OSError:
            self.leftovers.remove(name)  # now or later
            raise

    @contextmanager
    def leaf(self, sha256: str) -> Iterator[int]:
        """A descriptor of the directory that the blob lies in. Raises OSError."""
        with (
            opened_directory(sha256[:2], parent=self._blobs) as upper,
            opened_directory(sha256[2:4], parent=upper) as leaf,
        ):
            yield leaf

    @contextmanager
    def _made_leaf(self, sha256: str) -> Iterator[tuple[int, int]]:
        if mkdir(sha256[:2], parent=self._blobs):
            self._uppers_known[int(sha256[:2], 16)] = False
        with opened_directory(sha256[:2], parent=self._blobs) as upper:
            if mkdir(sha256[2:4], parent=upper):
                self._leaves_known[int(sha256[:4], 16)] = False
            with opened_directory(sha256[2:4], parent=upper) as leaf:
                yield upper, leaf

    def _sync_levels(self, sha256: str, upper: int) -> None:
        """Makes the directories that lead to a blob durable, before anything is moved there.

        A level that is there may not be durable: a process that was killed has made it. But once this process
        has synced it, it stays.
        """
        upper_at, leaf_at = int(sha256[:2], 16), int(sha256[:4], 16)
        if not self._uppers_known[upper_at]:
            self.disk.fsync(self._blobs)
            self._uppers_known[upper_at] = True
        if not self._leaves_known[leaf_at]:
            self.disk.fsync(upper)
            self._leaves_known[leaf_at] = True

    def listed(self, name: str, look: Callable[[int], list[str]]) -> list[str]:
        """The names in the directory `name` below `blobs`, which may be of two levels; none if it is gone."""
        with self.poison.skipping(BLOBS, name), suppress(FileNotFoundError), ExitStack() as opened:
            directory = self._blobs
            for part in filter(None, name.split("/")):
                directory = opened.enter_context(opened_directory(part, parent=directory))
            found = look(directory)
            if look is directory_names:
                self.poison.keep(BLOBS, found, below=f"{name}/" if name else "")
            return found
        return []


def _sums_of(fd: int, sha256: str, leaf: int) -> SegmentSums:
    """The checksums of the open file `fd`, from its sidecar in `leaf`."""
    facts = os.fstat(fd)
    file = (facts.st_dev, facts.st_ino)
    if not stat.S_ISREG(facts.st_mode):
        raise BlobDamaged(sha256, "is not a regular file", file=file)
    try:
        raw = read_whole(sha256 + SIDECAR, parent=leaf, bytes_max=sidecar_bytes(facts.st_size))
        return decode_sidecar(raw, facts.st_size)
    except FileNotFoundError:
        raise BlobDamaged(sha256, "has no sidecar", file=file) from None
    except SidecarInvalid as error:
        raise BlobDamaged(sha256, str(error), file=file) from None


def require_sha256(sha256: str) -> None:
    """Raises InvalidRequest for what is no name of a blob."""
    if not is_sha256(sha256):
        raise InvalidRequest("sha256: must be 64 lower-case hexadecimal digits.")


def directory_names(descriptor: int) -> list[str]:
    """The directories of two digits in a directory, ascending. Raises OSError."""
    with os.scandir(descriptor) as entries:
        return sorted(e.name for e in entries if len(e.name) == 2 and e.is_dir(follow_symlinks=False))


def _file_names(descriptor: int) -> list[str]:
    with os.scandir(descriptor) as entries:
        names = [e.name for e in entries if is_sha256(e.name) and e.is_file(follow_symlinks=False)]
    return sorted(names)
