"""A directory in memory that forgets in a crash what was not synced, or keeps it, or half of it: dice decide.

Implements `coordinator.storage.log_directory.Directory`. After a crash each write that was not synced is
whole, lost, cut at any byte, or there in some of its sectors only, each on its own; names made, changed or
removed without a sync of the directory are there or not, each on its own. `kill` ends the process alone: what
it wrote can be read, and is as unsynced as before. All chance comes from the Random handed in. A log whose
process has crashed must not be closed.
"""

import errno
import random
from itertools import pairwise
from pathlib import Path

from coordinator.storage.log_directory import LogInUse

SECTOR_BYTES = 512
CAPACITY_BYTES = 1 << 40
_WRITE, _ALLOCATE, _TRUNCATE = range(3)
_Change = tuple[int, int, int, bytes | bytearray]  # what, start, end, the bytes that were there before


class Crashed(BaseException):
    """The simulated process died here. No `except` of the product may hold it."""


class Node:
    """One file's content, and the changes since its last sync in a form that can be undone.

    What a failed sync should have saved is never durable, unless it is written anew: the kernel takes it for
    saved, and shows it to whoever reads.
    """

    __slots__ = ("_certain", "_taken", "content", "unsynced")

    def __init__(self) -> None:
        self.content = bytearray()
        self.unsynced: list[_Change] = []
        self._taken = 0  # so many of them a sync has taken, which may have failed
        self._certain: set[int] = set()  # those that one has saved behind others that one has not

    def sync(self, *, fails: bool) -> None:
        """Saves what no sync has taken yet, or takes it all the same."""
        if not fails and not self._taken:
            self.unsynced.clear()
            return
        if not fails:
            self._certain.update(range(self._taken, len(self.unsynced)))
        self._taken = len(self.unsynced)

    def settled(self, rand: random.Random) -> "Node":
        """What a crash leaves; a process that lives on by mistake writes into this one."""
        left = Node()
        left.content, self.content = self.content, bytearray()
        left.unsynced, left._certain = self.unsynced, self._certain
        left._settle(rand)
        return left

    def _settle(self, rand: random.Random) -> None:
        """The synced content, and whatever the dice keep of the rest, in its order."""
        made: list[tuple[int, int, int, bytes]] = []
        for what, start, end, before in reversed(self.unsynced):
            made.append((what, start, end, bytes(self.content[start:end]) if what == _WRITE else b""))
            if what == _WRITE:
                self.content[start:end] = before
            elif what == _ALLOCATE:
                del self.content[start:]
            else:
                self.content += before
        for number, (what, start, end, data) in enumerate(reversed(made)):
            self._redo(what, start, end, data, None if number in self._certain else rand)
        self.unsynced, self._certain = [], set()

    def _redo(self, what: int, start: int, end: int, data: bytes, rand: random.Random | None) -> None:
        """All of it without dice."""
        if what == _WRITE:
            for low, high in [(start, end)] if rand is None else surviving(start, end, rand):
                self._extend(low)
                self.content[low:high] = data[low - start : high - start]
        elif rand is None or rand.random() < 0.5:
            if what == _ALLOCATE:
                self._extend(end)
            else:
                del self.content[start:]

    def _extend(self, size_bytes: int) -> None:
        if size_bytes > len(self.content):
            self.content += bytes(size_bytes - len(self.content))


def surviving(start: int, end: int, rand: random.Random) -> list[tuple[int, int]]:
    """The parts of an unsynced write of [start, end) that a crash leaves."""
    fate = rand.randrange(4)
    if fate == 0:
        return [(start, end)]
    if fate == 1:
        return []
    if fate == 2:
        return [(start, rand.randint(start, end))]
    borders = [start, *range((start // SECTOR_BYTES + 1) * SECTOR_BYTES, end, SECTOR_BYTES), end]
    return [part for part in pairwise(borders) if rand.random() < 0.5]


class SimulatedFile:
    """An open file of a `SimulatedDirectory`. Implements `coordinator.storage.log_directory.File`."""

    __slots__ = ("_directory", "_node")

    def __init__(self, directory: "SimulatedDirectory", node: Node) -> None:
        self._directory = directory
        self._node = node

    def size_bytes(self) -> int:
        return len(self._node.content)

    def read(self, offset: int, size_bytes: int) -> bytes:
        return bytes(self._node.content[offset : offset + size_bytes])

    def write(self, offset: int, data: bytes) -> None:
        """Made before the crash that `crash_after` may put here: then the dice decide about it."""
        node = self._node
        content = node.content
        end = offset + len(data)
        if end > len(content):
            self._grow_for(offset, data)
        node.unsynced.append((_WRITE, offset, end, content[offset:end]))
        content[offset:end] = data
        if self._directory.is_armed:
            self._directory.count()

    def _grow_for(self, offset: int, data: bytes) -> None:
        """Takes the room; without enough of it a part of the data is there and the call fails."""
        missing_bytes = offset + len(data) - len(self._node.content)
        if missing_bytes > self._directory.free_bytes():
            self.write(offset, data[: max(len(data) - missing_bytes, 0)])
            raise OSError(errno.ENOSPC, "no room")
        if offset > len(self._node.content):
            self.allocate(offset)
            missing_bytes = len(data)
        self._directory.used_bytes += missing_bytes

    def allocate(self, size_bytes: int) -> None:
        content = self._node.content
        more_bytes = size_bytes - len(content)
        if more_bytes > 0:
            if more_bytes > self._directory.free_bytes():
                raise OSError(errno.ENOSPC, "no room")
            self._directory.used_bytes += more_bytes
            self._node.unsynced.append((_ALLOCATE, len(content), size_bytes, b""))
            content += bytes(more_bytes)
        self._directory.count()

    def truncate(self, size_bytes: int) -> None:
        content = self._node.content
        self._directory.used_bytes -= len(content) - size_bytes
        self._node.unsynced.append((_TRUNCATE, size_bytes, len(content), content[size_bytes:]))
        del content[size_bytes:]
        self._directory.count()

    def sync(self) -> None:
        """A crash here comes before the sync: after it, it would be one before the next operation."""
        directory = self._directory
        if directory.is_armed:
            directory.count()
        self._node.sync(fails=directory.sync_fails)
        if directory.sync_fails:
            directory.refuse_sync()
        directory.syncs += 1

    def close(self) -> None:
        pass


class SimulatedDirectory:
    """One member's log directory on one disk; it outlives the processes that open it."""

    def __init__(self, rand: random.Random, *, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.syncs = 0  # of files
        self.operations = 0  # counted while armed
        self.is_armed = False
        self.sync_fails = False
        self._rand = rand
        self._operations_left = 0
        self._is_locked = False
        self._nodes: dict[str, Node] = {}
        self._synced_nodes: dict[str, Node] = {}
        self._unsynced: list[tuple[str, str, Node | None]] = []  # name gone, name made, its file

    def crash(self) -> None:
        """The machine loses power: what was not synced is kept, lost or torn. It can be opened again."""
        nodes = self._synced_nodes
        for gone, made, node in self._unsynced:
            if self._rand.random() < 0.5:
                nodes.pop(gone, None)
                if node is not None:
                    nodes = {name: other for name, other in nodes.items() if other is not node}
                    nodes[made] = node
        self._unsynced.clear()
        for name, node in nodes.items():
            nodes[name] = node.settled(self._rand)
        self._nodes, self._synced_nodes = dict(nodes), nodes
        self.used_bytes = sum(len(node.content) for node in nodes.values())
        self.kill()

    def kill(self) -> None:
        """The process dies and the machine lives on: all that was written can be read, unsynced as it is."""
        self._is_locked = self.is_armed = self.sync_fails = False

    def crash_after(self, operations: int) -> None:
        """The `operations`-th change or sync from now raises Crashed, and so do all until `crash`."""
        assert operations > 0, "a crash needs an operation"
        self.is_armed = True
        self._operations_left = operations

    def fail_next_sync(self) -> None:
        """The next sync raises EIO, and what it should have saved is not durable until it is written anew."""
        self.sync_fails = True

    def refuse_sync(self) -> None:
        """Raises what a broken disk does, once."""
        self.sync_fails = False
        raise OSError(errno.EIO, "the disk failed")

    def count(self) -> None:
        """One operation has been made; raises Crashed where that was asked for."""
        if self.is_armed:
            self.operations += 1
            self._operations_left -= 1
            if self._operations_left <= 0:
                raise Crashed

    def content(self, name: str) -> bytes:
        """What a file holds, synced or not."""
        return bytes(self._nodes[name].content)

    def damage(self, name: str, offset: int, *, bits: int = 1) -> None:
        """Flips bits of a byte on the disk."""
        self._nodes[name].content[offset] ^= bits

    def zero(self, name: str, offset: int) -> None:
        """The disk loses a file's end."""
        content = self._nodes[name].content
        content[offset:] = bytes(len(content) - offset)

    def names(self) -> list[str]:
        return sorted(self._nodes)

    def open(self, name: str) -> SimulatedFile:
        if name not in self._nodes:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        return SimulatedFile(self, self._nodes[name])

    def create(self, name: str) -> SimulatedFile:
        if name in self._nodes:
            self.used_bytes -= len(self._nodes[name].content)
        node = self._nodes[name] = Node()
        self._unsynced.append((name, name, node))
        self.count()
        return SimulatedFile(self, node)

    def rename(self, source: str, target: str) -> None:
        node = self._nodes.pop(source)
        if target in self._nodes:
            self.used_bytes -= len(self._nodes[target].content)
        self._nodes[target] = node
        self._unsynced.append((source, target, node))
        self.count()

    def remove(self, name: str) -> None:
        self.used_bytes -= len(self._nodes.pop(name).content)
        self._unsynced.append((name, name, None))
        self.count()

    def sync(self) -> None:
        self.count()
        if self.sync_fails:
            self.refuse_sync()
        self._synced_nodes = dict(self._nodes)
        self._unsynced.clear()

    def lock(self) -> None:
        if self._is_locked:
            raise LogInUse("This simulated log is open.")
        self._is_locked = True

    def free_bytes(self) -> int:
        return max(self.capacity_bytes - self.used_bytes, 0)

    def path(self, name: str) -> Path:
        return Path("simulated") / name

    def close(self) -> None:
        self._is_locked = False
