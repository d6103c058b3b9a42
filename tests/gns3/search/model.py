"""What is known of each project of each lab server: its state, and the states that were stored. No I/O.

A state is known by the names of the nodes, by the images that they name, and by the checksum of every file.
Files that GNS3 never exports are a part of the state of a project, and of no backup.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

CONFLICT: Final = 5
NOT_FOUND: Final = 4
# What GNS3 leaves out of an export, as far as the search makes such files.
_NOT_EXPORTED: Final = re.compile(r"project-files/captures/.*|.*\.log")


@dataclass(frozen=True, slots=True)
class State:
    """A project at one moment: SHA-256 by path, names of nodes, and images with their MD5."""

    files: Mapping[str, str] = field(default_factory=dict)
    nodes: frozenset[str] = frozenset()
    images: frozenset[tuple[str, str]] = frozenset()

    @property
    def exported(self) -> "State":
        """What an export can carry."""
        kept = {name: digest for name, digest in self.files.items() if not _NOT_EXPORTED.fullmatch(name)}
        return State(kept, self.nodes, self.images)

    @property
    def is_exported_whole(self) -> bool:
        """Whether an export carries all of it."""
        return len(self.exported.files) == len(self.files)

    def difference(self, other: "State") -> str:
        """What tells them apart, for people; "" for nothing."""
        names = sorted(
            name for name in {*self.files, *other.files} if self.files.get(name) != other.files.get(name)
        )
        told = [f"{len(names)} files ({', '.join(names[:3])})"] if names else []
        if self.nodes != other.nodes:
            told.append(f"nodes {sorted(self.nodes ^ other.nodes)}")
        if self.images != other.images:
            told.append(f"images {sorted(self.images ^ other.images)}")
        return ", ".join(told)


@dataclass(slots=True)
class Backup:
    """One that is in the store. `is_damaged`: no replica of it is sound any more.

    `is_known_to_lack`: GNS3 left files out, and listed them.
    """

    file_uuid: str
    state: State
    is_known_to_lack: bool
    is_damaged: bool = False


@dataclass(slots=True)
class Lab:
    """A project of one server. `chain` is in the order in which its backups were stored."""

    server: str
    project_id: str
    name: str
    state: State
    is_v2: bool = False  # its server is one of GNS3 2.2
    chain: list[Backup] = field(default_factory=list)

    @property
    def whole(self) -> list[Backup]:
        """Backups that can be restored."""
        return [backup for backup in self.chain if not backup.is_damaged]

    def __str__(self) -> str:
        return f"{self.name} of {self.server}"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a backup is to go: the images of that server, and those of the store."""

    is_v2: bool
    images: Mapping[str, str]  # MD5 by name
    stored_md5s: frozenset[str]

    def missing(self, state: State) -> set[str]:
        """The images that are neither there nor in the store."""
        return {name for name, md5 in state.images if name not in self.images and md5 not in self.stored_md5s}

    def refusal(self, lab: Lab, backup: Backup, *, without_images: bool) -> int:
        """The exit code of a restore that cannot be done, 0 for one that can."""
        has_others = any(self.images.get(name, md5) != md5 for name, md5 in backup.state.images)
        if has_others or (self.is_v2 and not lab.is_v2):
            return CONFLICT
        return NOT_FOUND if self.missing(backup.state) and not without_images else 0


@dataclass(slots=True)
class Model:
    """All labs. Backups that the model does not know yet are of the last run, which may have been killed."""

    labs: list[Lab] = field(default_factory=list)
    strange: set[str] = field(default_factory=set)  # files of others, which have the look of backups
    last_run: dict[str, tuple[Lab, State]] = field(default_factory=dict)  # by the id of the project
    is_open: bool = False  # in that run

    def of(self, server: str) -> list[Lab]:
        """Those of a server."""
        return [lab for lab in self.labs if lab.server == server]

    def begin_run(self, server: str, listed: Mapping[str, str], *, is_open: bool) -> None:
        """A backup of this server begins. `is_open`: GNS3 lists the files of its labs.

        `listed`: as for `found`. What the store has by now is of the run before: its command may have been
        killed, and the store has ended the last request since.
        """
        self.found(listed)
        self.is_open = is_open
        self.last_run = {lab.project_id: (lab, lab.state) for lab in self.of(server)}

    def found(self, listed: Mapping[str, str]) -> None:
        """Add the backups that are in the store and not known, by file_uuid and id of the project."""
        known = {backup.file_uuid for lab in self.labs for backup in lab.chain} | self.strange
        for file_uuid, project_id in listed.items():
            if file_uuid not in known and project_id in self.last_run:
                lab, state = self.last_run[project_id]
                is_known_to_lack = self.is_open and not state.is_exported_whole
                lab.chain.append(Backup(file_uuid, state.exported, is_known_to_lack))

    def backup(self, file_uuid: str) -> tuple[Lab, Backup] | None:
        """A backup, and whose it is."""
        for lab in self.labs:
            for backup in lab.chain:
                if backup.file_uuid == file_uuid:
                    return lab, backup
        return None
