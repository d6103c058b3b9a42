"""What this machine remembers of backups of one server into one cluster, and that only one runs at a time.

    {"unfinished": ["<file_uuid>"], "projects": {"<project_id>": {"seen_at": ..., "good_at": ...}}}

It lies in ${XDG_STATE_HOME:-~/.local/state}/filestore/gns3. Lost, it costs nothing but that an upload which a
killed run began stays for a day, and that the age of backups counts anew.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ca.errors import Conflict
from ca.secretfiles import make_directory, write_durable


class ProjectMemory(msgspec.Struct):
    """Since when a project is known, and when its newest backup was last known to be as it is. Seconds.

    `changed`: whether the project had changed since the backup before.
    """

    seen_at: float
    good_at: float = 0.0
    changed: bool = False


class _Content(msgspec.Struct):
    unfinished: list[str] = []
    projects: dict[str, ProjectMemory] = {}


class Journal:
    """Use within `opened`, which holds the lock. Every change is on disk when its method returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._content = msgspec.json.decode(path.read_bytes(), type=_Content)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            self._content = _Content()

    @property
    def unfinished(self) -> list[str]:
        """Uploads that a run has begun and not ended."""
        return list(self._content.unfinished)

    def begun(self, file_uuid: str) -> None:
        """An upload is about to be written."""
        self._content.unfinished.append(file_uuid)
        self._save()

    def ended(self, file_uuid: str) -> None:
        """It is complete, or given up."""
        self._content.unfinished = [each for each in self._content.unfinished if each != file_uuid]
        self._save()

    def seen(self, project_ids: list[str], *, at: float) -> None:
        """These are the projects that there are; the others are forgotten."""
        known = self._content.projects
        self._content.projects = {each: known.get(each) or ProjectMemory(seen_at=at) for each in project_ids}
        self._save()

    def good(self, project_id: str, *, at: float, changed: bool = False) -> None:
        """The newest backup of a project is as the project is. `changed`: the one before was not."""
        memory = self._content.projects.setdefault(project_id, ProjectMemory(seen_at=at))
        memory.good_at, memory.changed = at, changed
        self._save()

    def has_changed(self, project_id: str) -> bool:
        """Whether the last run found a change in a project; so the next one probably does, too."""
        memory = self._content.projects.get(project_id)
        return memory is not None and memory.changed

    def not_good(self, project_id: str) -> None:
        """Forget that a project has a good backup: it has none, or the newest turned out to be damaged."""
        if (memory := self._content.projects.get(project_id)) is not None:
            memory.good_at = 0.0
            self._save()

    def oldest_good_at(self) -> float | None:
        """Since when the backup of some project may be out of date, at the worst; None without projects.

        A project that was never backed up counts from when it was seen first.
        """
        return min((each.good_at or each.seen_at for each in self._content.projects.values()), default=None)

    def _save(self) -> None:
        write_durable(self._path, msgspec.json.encode(self._content), mode=0o600)


@contextmanager
def opened(server: str, cluster: str) -> Iterator[Journal]:
    """The journal of a server. Raises Conflict while another process has it, OSError."""
    directory = _directory()
    make_directory(directory)
    path = directory / f"{server}-{cluster[:8]}.json"
    descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"Another backup of GNS3 server {server} is running on this machine.") from None
        yield Journal(path)
    finally:
        os.close(descriptor)


def _directory() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return base / "filestore" / "gns3"
