"""The folders of projects on the machine of a GNS3 server, also while the server does not run.

A project is looked for directly below the folder of projects only: on a server of many users, its API may
name any folder of the machine.

Tested by tests/gns3/test_local.py.
"""

import asyncio
import json
import os
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from ca.errors import Conflict, Unavailable
from deploy.gns3.fingerprint import Fingerprint
from deploy.gns3.folders.entries import FolderScan, open_file, opened_folder, scan
from deploy.gns3.records import LabNode, LabProject, Notification, ServerImage
from deploy.gns3.server import Gns3Server, ServerAddress

TOPOLOGY_ENDING: Final = ".gns3"
_MADE_BY_OPENING: Final = (".gns3.backup", ".gns3.tmp")
_TOPOLOGY_BYTES_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class ScannedProject:
    """A project's folder as it was found: its entries, and the topologies by their names."""

    scan: FolderScan
    topologies: Mapping[str, bytes]

    @property
    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint. What GNS3 changes when it opens and closes a project does not count."""
        passing = [each.path for each in self.scan.entries if is_passing(each.path)]
        digest = self.scan.digest(passing=passing, by_content=self.topologies.items())
        return Fingerprint(zlib.crc32(self.topology), digest, "full")

    @property
    def topology(self) -> bytes:
        """The first topology; b"" if there is none."""
        return next(iter(self.topologies.values()), b"")

    @property
    def project_ids(self) -> tuple[str, ...]:
        """The ids that its topologies name."""
        found = (_topology_of(content) for content in self.topologies.values())
        return tuple(str(each.get("project_id", "")) for each in found if each)


def is_passing(path: str) -> bool:
    """Whether GNS3 makes this file when it opens a project, and whether it is changed says nothing."""
    return "/" not in path and path.endswith(_MADE_BY_OPENING)


def scan_project(folder: int, name: str, *, keep: Callable[[str], bool] | None = None) -> ScannedProject:
    """Look at a project's folder, which is open; `keep` as for `scan`.

    Blocks. Raises OSError, FolderChanges, Conflict.
    """
    found = scan(folder, name, first=TOPOLOGY_ENDING, keep=keep)
    topologies: dict[str, bytes] = {}
    for entry in found.entries:
        if entry.kind != "file" or "/" in entry.path or not entry.path.endswith(TOPOLOGY_ENDING):
            continue
        if entry.size > _TOPOLOGY_BYTES_MAX:
            raise Conflict(f"{entry.path} is too large for a topology.")
        descriptor = open_file(folder, entry)
        with os.fdopen(descriptor, "rb") as file:
            topologies[entry.path] = file.read(_TOPOLOGY_BYTES_MAX)
    return ScannedProject(found, topologies)


def folder_name(project: LabProject, directory: Path) -> str:
    """Return the name of a project's folder. Raises Conflict if it is not in this directory."""
    name = PurePosixPath(project.path).name
    if not name or not (directory / name).is_dir():
        raise Conflict(f"Its folder {project.path} is not in {directory}. Nothing was stored.")
    return name


def _projects_in(directory: Path) -> Iterator[LabProject]:
    """The projects that a GNS3 server would list after its start. Raises OSError."""
    for name in sorted(os.listdir(directory)):
        try:
            with opened_folder(directory / name) as folder:
                endings = [each for each in os.listdir(folder) if each.endswith(TOPOLOGY_ENDING)]
                contents = [_read(folder, each) for each in sorted(endings)]
        except OSError:
            continue  # such as a file
        for topology in filter(None, map(_topology_of, contents)):
            yield LabProject(
                project_id=str(topology.get("project_id", "")),
                name=str(topology.get("name", "")),
                status="closed",
                path=str(directory / name),
            )


def _read(folder: int, name: str) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
        return file.read(_TOPOLOGY_BYTES_MAX)


def _topology_of(content: bytes) -> dict[str, Any]:
    """The topology; {} for what is none."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and found.get("project_id") else {}


class StoppedServer(Gns3Server):
    """A server that does not run. Its projects are those of its folder; nothing else can be asked of it."""

    def __init__(self, address: ServerAddress, directory: Path) -> None:
        super().__init__(address)
        self.runs = False
        self._directory = directory

    async def projects(self) -> list[LabProject]:
        """Return every project, by name. Raises OSError."""
        found = await asyncio.to_thread(lambda: list(_projects_in(self._directory)))
        return sorted(found, key=lambda project: (project.name, project.project_id))

    async def nodes(self, project_id: str) -> list[LabNode]:
        """Return none: no node can be asked for."""
        del project_id
        return []

    async def images(self) -> list[ServerImage]:
        """Raise Unavailable."""
        raise Unavailable(f"GNS3 server {self.name} does not run, and only it reports images.")

    async def notifications(self, project_id: str = "") -> AsyncGenerator[Notification, None]:
        """Raise Unavailable: nothing happens on it."""
        del project_id
        raise Unavailable(f"GNS3 server {self.name} does not run.")
        yield  # which makes it a generator

    async def reload(self) -> None:
        """Do nothing: the server looks at its folder when it starts."""
