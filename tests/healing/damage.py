"""What disks do to replicas. Only to those of a blob that has two sound ones elsewhere, which stay.

The log names those two, and it lets none go as long as fewer than three others count: one replica of a blob
that nobody has found to be damaged yet never leaves it with none.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

from deploy.development import Member
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
            return f"{victim.id} {sha256[:8]}"
    return ""


def _victim(stage: Stage, sha256: str) -> Member | None:
    """A node whose replica can be spared."""
    named = {node_id for (node_id,) in stage.logged(_NAMED, sha256)}
    holders = [node for node in stage.nodes if is_sound(stage.blob(node, sha256))]
    sound = [node for node in holders if node.id in named]
    return stage.dice.choice(sound) if len(sound) > SOUND_MIN else None
