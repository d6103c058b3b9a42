"""Compare two versions of a project: files that were added, removed or changed, and texts line by line."""

import difflib
from collections.abc import Collection, Mapping
from typing import Final, Literal

import msgspec

from ca.errors import Conflict
from deploy.gns3.archive import TOPOLOGY, TOPOLOGY_BYTES_MAX
from deploy.gns3.diffs.contents import FileFacts, ProjectContents
from deploy.gns3.diffs.topology import TopologyChange, node_names, topology_changes

READ_BYTES_MAX: Final = 1 << 20  # of a file that is read to be compared
LINES_MAX: Final = 5000  # of a text that is compared line by line
READ_TOTAL_BYTES_MAX: Final = 256 << 20  # of one version; further files are compared by size and time only
_LOGS: Final = (".log", "_log.txt")  # their lines are no configuration

How = Literal["added", "removed", "changed", "access", "unknown"]


class FileChange(msgspec.Struct, frozen=True):
    """A file that differs. `node`: the name of the node that it belongs to, "" for none.

    `change`: `access` if only mode, owner or attributes differ; `unknown` if its content was not compared, as
    one version has checksums and the other one has times. Sizes are -1 if there is no file. `lines`: a
    unified diff of its text.
    """

    path: str
    node: str
    change: How
    size_before: int
    size_after: int
    lines: list[str] = []


class VersionChanges(msgspec.Struct, frozen=True):
    """The differences between two versions of a project, which have these titles."""

    before: str
    after: str
    topology: list[TopologyChange]
    files: list[FileChange]


async def compare(before: ProjectContents, after: ProjectContents) -> VersionChanges:
    """Return the changes from one version to the other. Raises Conflict if an archive is damaged."""
    names = sorted({*before.files, *after.files})
    doubtful = [name for name in names if _may_differ(before.files.get(name), after.files.get(name))]
    old, new = [await _small_files(side, doubtful) for side in (before, after)]
    topologies = old.pop(TOPOLOGY, b"{}"), new.pop(TOPOLOGY, b"{}")
    nodes: dict[str, str] = {}
    for topology in topologies:
        nodes |= node_names(topology)
    files: list[FileChange] = []
    for name in doubtful:
        was, now = before.files.get(name), after.files.get(name)
        change = _change(was, now, old.get(name), new.get(name))
        if change is None or name == TOPOLOGY:
            continue
        is_read = (was is None or name in old) and (now is None or name in new)
        lines = _lines(name, old.get(name, b""), new.get(name, b"")) if is_read else []
        size_before, size_after = (-1 if each is None else each.size for each in (was, now))
        files.append(FileChange(name, _node_of(name, nodes), change, size_before, size_after, lines))
    return VersionChanges(before.title, after.title, topology_changes(*topologies), files)


def _may_differ(was: FileFacts | None, now: FileFacts | None) -> bool:
    return was is None or now is None or was.mark != now.mark or _access_differs(was, now)


def _access_differs(was: FileFacts, now: FileFacts) -> bool:
    return bool(was.access and now.access) and was.access != now.access


async def _small_files(side: ProjectContents, names: Collection[str]) -> dict[str, bytes]:
    """Read the topology, and those of the files that are small enough. Raises Conflict."""
    wanted: list[str] = []
    left_bytes = READ_TOTAL_BYTES_MAX
    for name in names:
        facts = side.files.get(name)
        if facts is None or facts.mark[0] == "target" or facts.size > min(READ_BYTES_MAX, left_bytes):
            continue
        left_bytes -= facts.size
        wanted.append(name)
    if TOPOLOGY in side.files:  # also for the names of nodes
        if side.files[TOPOLOGY].size > TOPOLOGY_BYTES_MAX:
            raise Conflict(f"{side.title}: the topology is too large.")
        wanted.append(TOPOLOGY)
    return await side.read({*wanted})


def _change(was: FileFacts | None, now: FileFacts | None, old: bytes | None, new: bytes | None) -> How | None:
    if was is None or now is None:
        return "added" if was is None else "removed"
    if was.size != now.size:
        return "changed"
    if was.mark != now.mark:
        if old is None or new is None:
            return "changed" if was.mark[0] == now.mark[0] else "unknown"
        if old != new:
            return "changed"
    return "access" if _access_differs(was, now) else None


def _lines(name: str, old: bytes, new: bytes) -> list[str]:
    """The unified diff of two texts; [] if one is no text, or is a log."""
    before, after = _text(old), _text(new)
    if before is None or after is None or name.endswith(_LOGS):
        return []
    return list(difflib.unified_diff(before, after, "before", "after", lineterm=""))


def _text(content: bytes) -> list[str] | None:
    """The lines of a text; None for other content, and for a text that is too long."""
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        return None
    if len(lines) > LINES_MAX or "\0" in "".join(lines):
        return None
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _node_of(path: str, names: Mapping[str, str]) -> str:
    return next((names[part] for part in path.split("/") if part in names), "")
