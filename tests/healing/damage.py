"""What disks do to replicas. Only to those of a blob that has two sound ones elsewhere, which stay; or to all
of them, each at another place, so that together they have everything.

The log names those two, and it lets none go as long as fewer than three others count: one replica of a blob
that nobody has found to be damaged yet never leaves it with none.

Wrong bytes come to lie under a name in one step, with a file of their own: a node sends from the page cache
what it has just checked there, and a write in place between the two, unlike a medium that rots, would
change it.
"""

import ctypes
import errno
import functools
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

from deploy.dev_cluster import Member
from node.storage.segments import SEGMENT_BYTES, segment_count
from tests.blobs_on_disk import change_byte, is_sound_on
from tests.cold_blobs import manifest_of
from tests.healing.stage import Stage
from tests.packed_blobs import lose_packed, packed_content
from tests.unit.custody_node import cut

SOUND_MIN = 2
TRIES = 5
_COPY = "damaged-copy"  # beside a node's areas: on the same disk, and none of its business
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # renameat2(2)
_LIBC = ctypes.CDLL(None, use_errno=True)
_How = Callable[[Path, Path], None]  # to a replica, by the data directory of its node and its path
_HowPacked = Callable[[Path, str], None]  # by its name
_NAMED = (
    "SELECT r.node_id FROM blob_replicas r JOIN blobs b ON b.sha256 = r.sha256"
    " WHERE r.sha256 = ? AND r.doomed_at IS NULL AND b.reference_count > 0"
)


def flip(stage: Stage) -> str:
    """One bit of a replica changes."""
    return _damage(
        stage,
        _replacing(lambda path: change_byte(path, _place(stage, path))),
        lambda data, name: _overwrite(stage, data, name, 1),
    )


def truncate(stage: Stage) -> str:
    """A replica loses its end."""
    return _damage(
        stage,
        _replacing(lambda path: cut(path, _place(stage, path))),
        lambda data, name: _overwrite(stage, data, name, 1 << 20),
    )


def unlink(stage: Stage) -> str:
    """A replica is gone."""
    return _damage(stage, lambda _, path: path.unlink(), lose_packed)


def _overwrite(stage: Stage, data: Path, name: str, count: int) -> None:
    """So many bytes of a packed replica are others, or all up to its end."""
    found = packed_content(data, name)
    if found is not None and found.size_bytes:
        content = bytearray(found.read())
        start = stage.dice.randrange(len(content))
        for at in range(start, min(start + count, len(content))):
            content[at] ^= 1
        found.write(content)


def link(stage: Stage) -> str:
    """Something else lies in the place of a replica."""

    def replace(_: Path, path: Path) -> None:
        path.unlink()
        path.symlink_to("/etc/hostname")

    return _damage(stage, replace)


def forbid(stage: Stage) -> str:
    """Nobody but root may read a replica."""
    return _damage(stage, lambda _, path: path.chmod(0))


def scatter(stage: Stage) -> str:
    """Replicas of a blob lose a bit, each in another segment: any two of them together have all of it."""
    files = [file for file in stage.ledger.stored() if file.content.size_bytes > SEGMENT_BYTES]
    for _ in range(TRIES if files else 0):
        content = stage.dice.choice(files).content
        segments = segment_count(content.size_bytes)
        sound = _sound(stage, content.sha256)
        if len(sound) <= SOUND_MIN:
            continue
        for segment, node in zip(range(segments), sound, strict=False):
            start = segment * SEGMENT_BYTES
            stop = min(start + SEGMENT_BYTES, content.size_bytes)
            flip_one = _replacing(functools.partial(change_byte, offset=stage.dice.randrange(start, stop)))
            try:
                flip_one(stage.cluster.data(node), stage.blob(node, content.sha256))
            except OSError as error:
                _require_spared(error)  # the others have more than one replica needs
        return f"{content.sha256[:8]} on {min(segments, len(sound))} nodes of {len(sound)}"
    return ""


def _require_spared(error: OSError) -> None:
    """Raises the error unless the replica was just dropped, or its disk has no room for a copy."""
    if error.errno not in (errno.ENOENT, errno.ENOSPC):
        raise error


def _place(stage: Stage, path: Path) -> int:
    return stage.dice.randrange(path.stat().st_size)


def _replacing(how: Callable[[Path], None]) -> _How:
    """Do it to a copy, which then takes the place of the replica. Raises OSError, and nothing has changed."""

    def replace(data: Path, replica: Path) -> None:
        copy = data / _COPY
        try:
            shutil.copy(replica, copy)
            how(copy)
            paths = os.fsencode(copy), os.fsencode(replica)
            if _LIBC.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            copy.unlink(missing_ok=True)

    return replace


def _damage(stage: Stage, how: _How, how_packed: _HowPacked | None = None) -> str:
    """One replica; what nobody can do to a packed one is done to a file."""
    files = stage.ledger.stored()
    for _ in range(TRIES if files else 0):
        sha256 = stage.dice.choice(files).content.sha256
        victim = _victim(stage, sha256)
        if victim is not None:
            data = stage.cluster.data(victim)
            try:
                if how_packed is not None and packed_content(data, sha256) is not None:
                    how_packed(data, sha256)
                elif manifest_of(data, sha256).exists():  # a chunk may be that of other blobs, too
                    how(data, manifest_of(data, sha256))
                else:
                    how(data, stage.blob(victim, sha256))
            except OSError as error:
                _require_spared(error)
                continue
            except (sqlite3.OperationalError, AssertionError):  # the node hangs or is full; it was dropped
                continue
            stage.damaged += 1
            return f"{victim.id} {sha256[:8]}"
    return ""


def _victim(stage: Stage, sha256: str) -> Member | None:
    """A node whose replica can be spared."""
    sound = _sound(stage, sha256)
    return stage.dice.choice(sound) if len(sound) > SOUND_MIN else None


def _sound(stage: Stage, sha256: str) -> list[Member]:
    """The nodes whose replica is sound, and that the log names."""
    named = {node_id for (node_id,) in stage.logged(_NAMED, sha256)}
    holders = [node for node in stage.nodes if is_sound_on(stage.cluster.data(node), sha256)]
    return [node for node in holders if node.id in named]
