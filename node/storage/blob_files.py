"""Blobs of one disk that are files of their own: their paths, and how they are placed, read and deleted.

    DIR/blobs/ab/cd/SHA256        the content, immutable, mode 0400
    DIR/blobs/ab/cd/SHA256.sums   its sidecar (`node/storage/segments.py`), in place before the content is
    DIR/uploads/UUID/             uploads in progress (`node/staging/upload_store.py`)
    DIR/uploads/incoming-RANDOM   half-written things; removed at start
    DIR/partials/SHA256/          replicas on their way here (`node/storage/partial_store.py`)
    DIR/quarantine/SHA256[.sums]  what must not be served (`node/storage/quarantine.py`)
    DIR/unclaimed/SHA256          what came and the log may not know yet (`node/storage/unclaimed.py`)
    DIR/placing.lock              held while a blob comes or goes (`node/storage/placement_lock.py`)
    DIR/packs/                    small blobs, many to a file (`node/storage/packed_blobs.py`)

The operator's own path to DIR may contain links. Below it, everything is opened relative to a directory
descriptor, no link is followed at any level, and files are created exclusively. All calls block: they belong
into worker threads, and may come from several at once.

After a power cut, a blob under its name is whole: content and sidecar are synced first, then renamed, then
the directories are synced.

Tested by tests/unit/node/storage/test_blobs.py.
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
from node.diskio.unusable_paths import UnusablePaths
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
# Areas of `UnusablePaths`: directories; the index of the packs; blobs that cannot be opened, read or deleted;
# blobs that cannot be quarantined, because no name leads to them or because they are damaged.
PACKS = "packs"
BLOBS, REPLICAS, READS, DROPS, STRAYS, DAMAGED = "blobs", "replicas", "reads", "drops", "strays", "damaged"
SIDECAR = ".sums"
_CREATE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# The errors of opening a path where a link, a file or a broken sector is in place of a directory or a file. A
# file that this node may not read is no replica either: all files here are its own.
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
        """Open the store, create missing directories, and remove half-written files of a crash.

        `maker` marks the half-written files of this process. `is_leftover` returns, from the name behind
        INCOMING, whether no process works on a file now.
        """
        self.disk = disk or Disk()
        self.trusted = trusted or TrustedSegments()
        self.syncs = DirectorySyncs()
        # For reading; a name is forgotten there when its file is deleted or replaced.
        self.opened = OpenBlobs()
        self.poison = UnusablePaths()
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
        # Content and sidecar of a name are placed and removed together.
        self.placing = PlacingLock(self._root)
        self.disk.fsync(self._root)
        self.leftovers = Leftovers(self.uploads_directory, self.poison)
        self.leftovers.find(INCOMING, is_leftover)

    def close(self) -> None:
        """Close the directories; blobs that were handed out stay readable."""
        self.opened.close()
        self.placing.close()
        self.areas.close()
        os.close(self._root)

    def open(self, sha256: str) -> OpenBlob:
        """Open a blob for reading; the caller closes it.

        Raises BlobMissing, also for a blob that was removed from service. Raises BlobDamaged if the file
        cannot be the blob: a link, no sidecar or a bad one, or a size that the sidecar contradicts.
        `OpenBlob.verify_range` checks the content itself.
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
            raise storage_error(error) from error  # for example too many open files, which is no damage
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
        """Return whether `open` would succeed."""
        try:
            self.open(sha256).close()
        except (BlobMissing, BlobDamaged):
            return False
        return True

    def has_name(self, sha256: str) -> bool:
        """Return whether a file or anything else has the name of the blob. Raises FilestoreError."""
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
        """Return the size of the blob. Raises as `open` does."""
        with self.open(sha256) as blob:
            return blob.size_bytes

    def iterate(self) -> Iterator[str]:
        """Yield the names of all blobs that are regular files, ascending, one directory in memory at a time.

        A directory that cannot be listed is skipped, and is then in `poison`.
        """
        for upper in self.list_level("", directory_names):
            for leaf in self.list_level(upper, directory_names):
                names = self.list_level(f"{upper}/{leaf}", _file_names)
                yield from (name for name in names if name.startswith(upper + leaf))

    def look_again(self) -> None:
        """Try again what could not be listed or opened: a regular look may come hours later."""
        for name in sorted(self.poison.names(BLOBS)):
            self.list_level(name, directory_names if name.count("/") == 0 else _file_names)
        for sha256 in sorted(self.poison.names(REPLICAS)):
            with self.poison.skipping(REPLICAS, sha256):
                self.has(sha256)

    def delete(self, sha256: str, *, unless: Callable[[], bool] = lambda: False) -> bool:
        """Remove the blob; return False if it was not there. Readers that have it open are not disturbed.

        If `unless` returns True, the blob stays with a durable name, and the result is False. It is called
        while no blob is placed or removed.
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
        """Keep the blob for a while (`node/storage/pins.py`), as a caller will report that it is here.

        Make its name durable: the process that placed it may not have synced that yet. Return False if the
        blob is not here. Raises FilestoreError.
        """
        require_sha256(sha256)
        try:
            with self.placing, self.leaf(sha256) as leaf:
                os.stat(sha256, dir_fd=leaf, follow_symlinks=False)  # a crash may leave only the sidecar
                os.utime(sha256 + SIDECAR, dir_fd=leaf, follow_symlinks=False)
            self.sync_placement(sha256)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise storage_error(error) from error
        return True

    def affirmed_at_s(self, sha256: str) -> float:
        """Return when `affirm` was last called, otherwise when the blob was placed; since the epoch.

        For a blob without a sidecar: when it was written. Raises BlobMissing, FilestoreError.
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
        """Stop serving the damaged file in its place, if the disk does not allow moving it.

        Return False if another file has the name now. The identity of a file that cannot be opened may be
        unknown. Raises OSError if the disk does not even report the file.
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
        """Serve a removed file again that proved to be sound; return whether it can be opened."""
        self.out_of_service.forget(sha256)
        self.poison.clear(DAMAGED, sha256)
        return self.has(sha256)

    def create_incoming(self) -> tuple[str, int]:
        """Create an empty file below `uploads_directory`; return its name and descriptor.

        The next start deletes it.
        """
        name = INCOMING + self._maker + secrets.token_hex(16)
        return name, os.open(name, _CREATE_FLAGS, 0o600, dir_fd=self.uploads_directory)

    def write_incoming(self, content: bytes, *, is_final: bool = True) -> str:
        """Write a synced file below `uploads_directory`, to be renamed, and return its name.

        It is sealed if it `is_final`, otherwise its owner may write to it. Raises OSError.
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
        """Make a file read-only and durable, its mode included. Raises OSError."""
        os.fchmod(descriptor, 0o400)
        self.disk.fsync(descriptor)

    def install(self, blob: FinishedBlob, sums: SegmentSums, *, source: str, parent: int) -> None:
        """Rename the sealed file `source` in directory `parent` to the blob's name; durable on return.

        The caller vouches for the hash. An existing blob of this name is replaced: it has the same bytes, or
        damaged ones. After an OSError the blob may be in place, but must not be relied on.
        """
        assert sums.size_bytes == blob.size_bytes
        note_unclaimed(self.unclaimed_directory, blob.sha256)
        with (
            self._made_leaf(blob.sha256) as (upper, leaf),
            self.incoming(encode_sidecar(sums)) as sidecar,  # syncs the journal, levels included
        ):
            self._sync_levels(blob.sha256, upper)
            with self.placing:
                name = blob.sha256 + SIDECAR
                os.rename(sidecar, name, src_dir_fd=self.uploads_directory, dst_dir_fd=leaf)
                os.rename(source, blob.sha256, src_dir_fd=parent, dst_dir_fd=leaf)
                self.forget(blob.sha256)
            self.syncs.sync(self.disk, leaf, blob.sha256[:4])

    def sync_placement(self, sha256: str) -> None:
        """Make the name of the blob durable again, after a crash that left this open. Raises OSError."""
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
        """Raise InsufficientStorage if the disk has no room for this many more bytes, or Internal."""
        with storage_errors():
            if self.room_bytes() < size_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def total_bytes(self) -> int:
        """Return the size of the file system."""
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
        """Open the directory of the blob and yield its descriptor. Raises OSError."""
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
        """Make the directories that lead to a blob durable, before a file is moved there.

        An existing directory may not be durable, if the process that created it was killed. Once this process
        has synced it, it is.
        """
        upper_at, leaf_at = int(sha256[:2], 16), int(sha256[:4], 16)
        if not self._uppers_known[upper_at]:
            self.disk.fsync(self._blobs)
            self._uppers_known[upper_at] = True
        if not self._leaves_known[leaf_at]:
            self.disk.fsync(upper)
            self._leaves_known[leaf_at] = True

    def list_level(self, name: str, look: Callable[[int], list[str]]) -> list[str]:
        """Return the names that `look` finds in the directory `name` below `blobs`.

        None if it does not exist. The name may have two levels.
        """
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
    """Return the checksums of the open file `fd`, from its sidecar in `leaf`."""
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
    """Raise InvalidRequest unless the text is the name of a blob."""
    if not is_sha256(sha256):
        raise InvalidRequest("sha256: must be 64 lower-case hexadecimal digits.")


def directory_names(descriptor: int) -> list[str]:
    """Return the directories of two digits in a directory, ascending. Raises OSError."""
    with os.scandir(descriptor) as entries:
        return sorted(e.name for e in entries if len(e.name) == 2 and e.is_dir(follow_symlinks=False))


def _file_names(descriptor: int) -> list[str]:
    with os.scandir(descriptor) as entries:
        names = [e.name for e in entries if is_sha256(e.name) and e.is_file(follow_symlinks=False)]
    return sorted(names)
