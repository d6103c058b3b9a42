"""The local record of backups of one server into one cluster, and the lock that allows one at a time.

    {"unfinished": ["<file_uuid>"], "shown_at": ..., "kind": ..., "ended_at": ...,
     "projects": {"<project_id>": {"name": ..., "seen_at": ..., "good_at": ..., "gone_at": ...}}}

A project that the server does not list any more is kept until a person confirms that it is gone for good.
Runs of all projects decide which kind of backups is expected; those of the other kind make no project good.

It is stored in ${XDG_STATE_HOME:-~/.local/state}/filestore/gns3, by the identity of the server: another
server with the same name has its own journal, and a server with two names has one journal. If it is lost, the
upload of a killed run stays for a day, the age of backups starts at zero, and missing projects are not
reported.

Tested by tests/unit/deploy/gns3/test_state.py.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ca.errors import Conflict
from ca.secretfiles import make_directory, write_durable
from deploy.gns3.identity import ServerIdentity
from deploy.gns3.records import LabProject
from filestore_client.base.contexts import state_directory


class ProjectMemory(msgspec.Struct):
    """Since when a project is known, and when its newest backup was last known to be as it is. Seconds.

    `changed`: whether the project had changed since the backup before. `gone_at`: the first run that did not
    find it; 0 for one that is there. `tries`: how many times a backup was begun since the last good one.
    `status` and `error`: the result of the last run that tried it. `lacks_backup`: it has no backup
    of the expected kind.
    """

    seen_at: float
    good_at: float = 0.0
    changed: bool = False
    name: str = ""
    gone_at: float = 0.0
    tries: int = 0
    status: str = ""
    error: str = ""
    lacks_backup: bool = False


class RunMemory(msgspec.Struct):
    """Facts about runs of all projects. `kind`: which backups they make; "" before the first one.

    `overdue_after_s`: how old a good backup may be. `ended_at`: when the last one ended that reached the
    server. `error`: what ended the last run; "" for one that tried all projects.
    """

    kind: str = ""
    overdue_after_s: float = 0.0
    ended_at: float = 0.0
    error: str = ""


class _Content(msgspec.Struct):
    unfinished: list[str] = []
    projects: dict[str, ProjectMemory] = {}
    shown_at: float = 0.0  # when the server last showed any project; before, when it was first looked at
    runs: RunMemory = msgspec.field(default_factory=RunMemory)
    folders: dict[str, ProjectMemory] = {}  # of the server itself, if runs of all back them up


class Journal:
    """Use within `opened`, which holds the lock. Every change is on disk when its method returns.

    Except `good`, `expect` and what is noted about results: they are on disk with the next change, or at the
    end. A run that is killed before loses only how good the last projects were, and the next one looks again.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._is_saved = path, True
        try:
            self._content = msgspec.json.decode(path.read_bytes(), type=_Content)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            self._content = _Content()

    @property
    def unfinished(self) -> list[str]:
        """Uploads that a run has begun and not ended."""
        return list(self._content.unfinished)

    def note_begin(self, file_uuid: str) -> None:
        """An upload is about to be written."""
        self._content.unfinished.append(file_uuid)
        self._save()

    def ended(self, file_uuid: str) -> None:
        """It is complete, or given up."""
        self._content.unfinished = [each for each in self._content.unfinished if each != file_uuid]
        self._save()

    def looked(self, *, at: float) -> None:
        """A run begins, which may not reach the server. A wrong clock noted what is in its future."""
        self._content.shown_at = min(self._content.shown_at or at, at)
        for memory in self._content.projects.values():
            memory.seen_at = min(memory.seen_at, at)
            memory.good_at = min(memory.good_at, at)
            memory.gone_at = min(memory.gone_at, at)
        self._content.runs.ended_at = min(self._content.runs.ended_at, at)
        self._save()

    @property
    def runs(self) -> RunMemory:
        """The facts about runs of all projects."""
        return self._content.runs

    @property
    def memories(self) -> dict[str, ProjectMemory]:
        """Projects by their ids, and folders of the server itself."""
        return self._content.projects | self._content.folders

    def expect(self, kind: str, *, overdue_after_s: float) -> None:
        """A run of all projects begins, which makes backups of this kind."""
        self._content.runs.kind, self._content.runs.overdue_after_s = kind, overdue_after_s
        self._is_saved = False

    def note_end(self, error: str, *, at: float, of_all: bool) -> None:
        """A run ends, "" without an error. `of_all`: it has tried all projects."""
        runs = self._content.runs
        runs.error, runs.ended_at = error, at if of_all else runs.ended_at
        self._is_saved = False

    def note_folders(self, folders: "Journal | None") -> None:
        """A run of all projects has backed up the folders of the server, which have this journal; or none."""
        self._content.folders = {} if folders is None else dict(folders._content.projects)
        self._is_saved = False

    def note_result(self, project: LabProject, *, kind: str, status: str, error: str, at: float) -> None:
        """Note the result of a project."""
        if not self._counts(kind):
            return
        memory = self._content.projects.setdefault(project.project_id, ProjectMemory(seen_at=at))
        memory.name, memory.status, memory.error = project.name, status, error
        memory.lacks_backup = memory.lacks_backup and status not in ("stored", "unchanged")
        self._is_saved = False

    def _counts(self, kind: str) -> bool:
        return kind in ("", self._content.runs.kind) or not self._content.runs.kind

    def seen(self, projects: Sequence[LabProject], *, at: float) -> None:
        """These are the projects that the server shows; the others that are known have gone."""
        known = self._content.projects
        for project in projects:
            memory = known.setdefault(project.project_id, ProjectMemory(seen_at=at))
            memory.name, memory.gone_at = project.name, 0.0
        for project_id in known.keys() - {project.project_id for project in projects}:
            known[project_id].gone_at = known[project_id].gone_at or at
        if projects or not self._content.shown_at:
            self._content.shown_at = at
        self._save()

    @property
    def gone(self) -> dict[str, ProjectMemory]:
        """The projects that the server does not show any more, by their ids."""
        return {project_id: memory for project_id, memory in self._content.projects.items() if memory.gone_at}

    def forget(self, project_id: str) -> None:
        """A project is gone for good."""
        del self._content.projects[project_id]
        self._save()

    def try_order(self, projects: Sequence[LabProject]) -> list[LabProject]:
        """Return the projects in the order to try them: those with the most tries come last."""
        tries = {project_id: memory.tries for project_id, memory in self._content.projects.items()}
        return sorted(projects, key=lambda project: tries.get(project.project_id, 0))

    def tried(self, project_id: str, *, at: float) -> None:
        """A backup of a project begins."""
        self._content.projects.setdefault(project_id, ProjectMemory(seen_at=at)).tries += 1
        self._save()

    def good(self, project_id: str, *, at: float, changed: bool = False, kind: str = "") -> None:
        """The newest backup of a project is as the project is. `changed`: the one before was not."""
        memory = self._content.projects.setdefault(project_id, ProjectMemory(seen_at=at))
        memory.good_at = at if self._counts(kind) else memory.good_at
        memory.changed, memory.tries = changed, 0
        self._is_saved = False

    def has_changed(self, project_id: str) -> bool:
        """Whether the last run found a change in a project; so the next one probably does, too."""
        memory = self._content.projects.get(project_id)
        return memory is not None and memory.changed

    def not_good(self, project_id: str, *, kind: str = "", lacks_backup: bool = True) -> None:
        """Forget that a project has a good backup: it has none, or the newest turned out to be damaged."""
        memory = self._content.projects.get(project_id)
        if memory is not None and self._counts(kind):
            memory.good_at, memory.lacks_backup = 0.0, lacks_backup
            self._save()

    def good_at(self) -> dict[str, float]:
        """Since when the backup of each project may be out of date, by its id; also of the server's folders.

        A project that was never backed up counts from when it was seen first.
        """
        return {project_id: memory.good_at or memory.seen_at for project_id, memory in self.memories.items()}

    def oldest_good_at(self) -> float:
        """Return the oldest good time of all projects; without projects, when the last one was seen."""
        return min(self.good_at().values(), default=self._content.shown_at)

    def close(self) -> None:
        """Save what is not saved yet."""
        if not self._is_saved:
            self._save()

    def _save(self) -> None:
        write_durable(self._path, msgspec.json.encode(self._content), mode=0o600)
        self._is_saved = True


@contextmanager
def opened(server: ServerIdentity, cluster: str) -> Iterator[Journal]:
    """The journal of a server. Raises Conflict while another process has it, OSError."""
    directory = state_directory() / "gns3"
    make_directory(directory)
    path = directory / f"{server.id}-{cluster[:8]}.json"
    descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                f"Another backup of GNS3 server {server.name} is running on this machine."
            ) from None
        remembered = Journal(path)
        try:
            yield remembered
        finally:
            remembered.close()
    finally:
        os.close(descriptor)
