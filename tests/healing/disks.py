"""Disks that go wrong and work again, and single things on them that a node cannot use.

What is put there is remembered by the stage, and is taken away in the end at the latest.
"""

import errno
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from deploy.dev_cluster import Member
from tests.cluster.disk_shim import KINDS
from tests.healing.stage import AWAY_MAX, Stage

UNLISTED: Final = "L", errno.EIO
UNLISTED_MAX: Final = 5  # at once


def sicken(stage: Stage) -> str:
    """A node's disk is read-only, fails, is full or gone."""
    if stage.rules is None or len(stage.away) >= AWAY_MAX:
        return ""
    node, kind = stage.dice.choice(stage.present), stage.dice.choice(sorted(KINDS))
    stage.sick[node.id] = stage.rules.add(f"{stage.cluster.data(node)}/", *KINDS[kind])
    return f"{node.id} {kind}"


def mend(stage: Stage) -> str:
    """A disk works again."""
    if stage.rules is None or not stage.sick:
        return ""
    node_id = stage.dice.choice(sorted(stage.sick))
    stage.rules.remove(stage.sick.pop(node_id))
    return node_id


def poison(stage: Stage) -> str:
    """A node has something on its disk that it cannot use."""
    node = stage.dice.choice(stage.nodes)
    kind = stage.dice.choice(sorted(POISONS))
    return f"{node.id} {kind}" if POISONS[kind](stage, node) else ""


def cure(stage: Stage) -> str:
    """Nothing of that is there any more."""
    if not stage.poisoned and not stage.unlisted:
        return ""
    count = len(stage.poisoned) + len(stage.unlisted)
    for path in stage.poisoned:
        subprocess.run(["chattr", "-i", path], check=False, capture_output=True)
        shutil.rmtree(path, ignore_errors=True)
        with suppress(FileNotFoundError, IsADirectoryError, PermissionError):
            path.unlink()
    for rule in stage.unlisted:
        if stage.rules is not None:
            stage.rules.remove(rule)
    # A full disk may not take the flag away: what is left is tried again, with room at the latest in the end.
    stage.poisoned = [path for path in stage.poisoned if os.path.lexists(path)]
    stage.unlisted.clear()
    return str(count)


def all_work(stage: Stage) -> None:
    """Every disk, with everything on it."""
    while mend(stage):
        pass
    cure(stage)


def _name(stage: Stage) -> str:
    """Of a blob that nobody has."""
    return stage.dice.randbytes(32).hex()


def _uuid(stage: Stage) -> str:
    return str(uuid.UUID(bytes=stage.dice.randbytes(16)))


def _stuck(stage: Stage, path: Path, *, is_directory: bool) -> bool:
    """Made, and not even root can remove it; False where that cannot be had."""
    with suppress(FileNotFoundError):
        if is_directory:
            path.mkdir()
            (path / "data").touch()
        else:
            path.touch()
        stage.poisoned.append(path)
        done = subprocess.run(["chattr", "+i", path], check=False, capture_output=True)
        return done.returncode == 0
    return False  # the node has never run that far


def _note(stage: Stage, node: Member) -> bool:
    path = stage.cluster.data(node) / "lost" / _name(stage)
    path.mkdir(parents=True)
    stage.poisoned.append(path)
    return True


def _stuck_note(stage: Stage, node: Member) -> bool:
    (stage.cluster.data(node) / "lost").mkdir(exist_ok=True)
    return _stuck(stage, stage.cluster.data(node) / "lost" / _name(stage), is_directory=False)


def _finished(stage: Stage, node: Member) -> bool:
    path = stage.cluster.data(node) / "uploads" / _uuid(stage)
    (path / "finished").mkdir(parents=True)
    stage.poisoned.append(path)
    return True


def _stuck_in(
    area: str, name: Callable[[Stage], str], *, is_directory: bool
) -> Callable[[Stage, Member], bool]:
    def put(stage: Stage, node: Member) -> bool:
        return _stuck(stage, stage.cluster.data(node) / area / name(stage), is_directory=is_directory)

    return put


def _state(stage: Stage, node: Member) -> bool:
    path = stage.cluster.data(node) / "scrub.json"
    if path.is_dir():
        return False
    path.unlink(missing_ok=True)
    with suppress(FileExistsError):  # it is written just now
        path.mkdir()
        stage.poisoned.append(path)
        return True
    return False


def _unlisted(stage: Stage, node: Member) -> bool:
    if stage.rules is None or len(stage.unlisted) >= UNLISTED_MAX:
        return False
    uppers = sorted(os.listdir(stage.cluster.data(node) / "blobs"))
    if not uppers:
        return False
    directory = stage.cluster.data(node) / "blobs" / stage.dice.choice(uppers)
    stage.unlisted.append(stage.rules.add(directory, *UNLISTED))
    return True


POISONS: Final[dict[str, Callable[[Stage, Member], bool]]] = {
    "finished": _finished,
    "leftover": _stuck_in("uploads", lambda stage: f"incoming-{_name(stage)}", is_directory=False),
    "note": _note,
    "partial": _stuck_in("partials", _name, is_directory=True),
    "quarantine": _stuck_in("quarantine", _name, is_directory=False),
    "state": _state,
    "stuck note": _stuck_note,
    "unlisted": _unlisted,
    "upload": _stuck_in("uploads", _uuid, is_directory=True),
}
