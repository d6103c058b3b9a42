"""What disks do to replicas. Only to those of a blob that has two sound ones elsewhere, which stay; or to all
of them, each at another place, so that together they have everything.

The log names those two, and it lets none go as long as fewer than three others count: one replica of a blob
that nobody has found to be damaged yet never leaves it with none.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

from deploy.development import Member
from node.segments import SEGMENT_BYTES, segment_count
from tests.cluster.test_damage import change_byte
from tests.healing.stage import Stage
from tests.unit.custody_node import cut

SOUND_MIN = 2
TRIES = 5
_NAMED = (
    "SELECT r.node_id FROM blob_replicas r JOIN blobs b ON b.sha256 = r.sha256"
    " WHERE r.sha256 = ? AND r.doomed_at IS NULL AND b.reference_count > 0"
)


def flip(stage: Stage) -> str:
    """One bit of a replica changes."""
    return _damage(stage, lambda path: change_byte(path, stage.dice.randrange(path.stat().st_size)))


def truncate(stage: Stage) -> str:
    """A replica loses its end."""
    return _damage(stage, lambda path: cut(path, stage.dice.randrange(path.stat().st_size)))


def unlink(stage: Stage) -> str:
    """A replica is gone."""
    return _damage(stage, Path.unlink)


def link(stage: Stage) -> str:
    """Something else lies in the place of a replica."""

    def replace(path: Path) -> None:
        path.unlink()
        path.symlink_to("/etc/hostname")

    return _damage(stage, replace)


def forbid(stage: Stage) -> str:
    """Nobody but root may read a replica."""
    return _damage(stage, lambda path: path.chmod(0))


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
            try:
                change_byte(stage.blob(node, content.sha256), stage.dice.randrange(start, stop))
            except FileNotFoundError:  # it was just dropped: the others have more than one replica needs
                continue
        return f"{content.sha256[:8]} on {min(segments, len(sound))} nodes of {len(sound)}"
    return ""


def is_sound(path: Path) -> bool:
    """Whether the bytes are what the name says."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == path.name
    except OSError:
        return False


def _damage(stage: Stage, how: Callable[[Path], None]) -> str:
    files = stage.ledger.stored()
    for _ in range(TRIES if files else 0):
        sha256 = stage.dice.choice(files).content.sha256
        victim = _victim(stage, sha256)
        if victim is not None:
            try:
                how(stage.blob(victim, sha256))
            except FileNotFoundError:  # it was just dropped
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
    holders = [node for node in stage.nodes if is_sound(stage.blob(node, sha256))]
    return [node for node in holders if node.id in named]
