"""Snapshots on simulated machines: images of the database, fetched in parts over the simulated network.

The interface is that of `coordinator.storage.snapshot_store`, whose files and checksums have tests of their
own.
"""

from typing import TYPE_CHECKING

from coordinator.raft.messages import SnapshotMeta, SnapshotOffer
from coordinator.storage.state_store import Store
from tests.sim.disk import Crashed

if TYPE_CHECKING:
    from tests.sim.machine import Machine

PATIENCE_TICKS = 3  # after which a part is asked for again
TRIES_MAX = 20  # of which nothing came, after which the leader may offer again


class SimulatedSnapshots:
    """What one machine's disk holds: one snapshot to hand out, and one that is being fetched, maybe half."""

    def __init__(self, machine: "Machine") -> None:
        self._machine = machine
        self._outgoing: tuple[SnapshotMeta, bytes] | None = None
        self.incoming_meta: SnapshotMeta | None = None
        self.incoming = bytearray()
        self.dies_in_install = False

    def take(self) -> SnapshotMeta:
        """A copy of the state as it is now, to hand out."""
        store = self._machine.store
        index, term = store.applied()
        meta = SnapshotMeta(index, term, store.members())
        self._outgoing = (meta, self._machine.database.image())
        self._machine.surroundings.checkers.snapshot_taken(self._machine, meta)
        return meta

    def newest(self) -> SnapshotMeta | None:
        """What lies there to hand out."""
        return self._outgoing[0] if self._outgoing else None

    def forget_outgoing(self) -> None:
        """Nobody needs it any more."""
        self._outgoing = None

    def part(self, meta: SnapshotMeta, offset: int, size_bytes: int) -> tuple[bytes, int] | None:
        """A part of the snapshot and the size of the whole, None if it is gone."""
        if self._outgoing is None or self._outgoing[0] != meta:
            return None
        image = self._outgoing[1]
        return image[offset : offset + size_bytes], len(image)

    def begin_incoming(self, meta: SnapshotMeta) -> int:
        """How much of this snapshot is here already; what is here of another one goes."""
        if self.incoming_meta != meta:
            self.incoming_meta = meta
            self.incoming.clear()
        return len(self.incoming)

    def install(self, meta: SnapshotMeta, store: Store) -> None:
        """The fetched snapshot becomes the database, durable."""
        assert self.incoming_meta == meta, f"{meta} is installed, but {self.incoming_meta} was fetched"
        machine = self._machine
        dies, self.dies_in_install = self.dies_in_install, False
        if dies and machine.rand.random() < 0.5:
            raise Crashed
        machine.database.install(bytes(self.incoming))
        machine.surroundings.checkers.installed(machine, meta)
        if dies:
            raise Crashed
        store.reopen()
        self.incoming_meta = None
        self.incoming.clear()

    def lose_power(self) -> None:
        """The end of what was being fetched is lost; a finished snapshot is durable."""
        keep = self._machine.rand.randint(0, len(self.incoming))
        del self.incoming[keep:]


class Fetch:
    """A machine gets a snapshot from another, part by part, as often as it takes."""

    def __init__(self, machine: "Machine", offer: SnapshotOffer) -> None:
        self.machine = machine
        self.source = offer.source
        self.meta = offer.meta
        self.offset = machine.snapshots.begin_incoming(offer.meta)
        self._ticks_left = PATIENCE_TICKS
        self._tries_left = TRIES_MAX

    def ask(self) -> None:
        """Asks for the part at `offset`."""
        self._ticks_left = PATIENCE_TICKS
        self.machine.surroundings.ask_chunk(self)

    def tick(self) -> None:
        """Asks again for what does not come, and gives up in the end."""
        self._ticks_left -= 1
        if self._ticks_left > 0:
            return
        self._tries_left -= 1
        if self._tries_left > 0:
            self.ask()
        else:
            self.machine.fetch = None

    def came(self, offset: int, found: tuple[bytes, int] | None) -> None:
        """A part came: maybe an old one, or one that came before."""
        if self.machine.fetch is not self:
            return
        if found is None:
            self.machine.fetch = None
            return
        data, size_bytes = found
        if offset != self.offset:
            return
        self.machine.snapshots.incoming += data
        self.offset += len(data)
        self._tries_left = TRIES_MAX
        if self.offset >= size_bytes:
            self.machine.fetched()
        else:
            self.ask()
