"""Custody of one node over real files, with the real state machine in place of the coordinators."""

import asyncio
import hashlib
import os
import random
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from ca.errors import CATALOGUE, Unavailable
from ca.identity import Identity, Role
from metadata.model.records import CoordinatorRecord
from metadata.protocol.calls import CALL_TIMEOUT_S, HeartbeatCall
from metadata.protocol.commands import AnyCommand, ReportDropped, ReportLost, ReportOrphans
from metadata.protocol.queries import AnyQuery, ListReplicas, ListReplicasToDelete
from metadata.rpc.client import MetadataClient
from metadata.rpc.view import View
from node.base.metrics import NodeMetrics
from node.custody.context import CustodyContext, Pass
from node.custody.custody import Custody
from node.custody.scrub import Cycle
from node.diskio.executor import DiskWorkers
from node.peer.client import PeerClient
from node.peer.rate_budget import Budget
from node.storage.blob_files import SIDECAR
from node.storage.blobs import BlobStore
from node.storage.quarantine import Quarantine
from runtime.audit import AuditLog
from tests.packed_blobs import (
    age_packed,
    exchange_packed,
    lose_packed,
    opened_index,
    packed_content,
    packed_present,
    rot_packed,
)
from tests.unit import replica_acts as acts
from tests.unit.state import Refusal, State

NODES = ("n1", "n2", "n3")
SIZE_BYTES = 5  # of the blobs of the state's completions
DAY_S = 86_400
LAYOUTS = ("files", "packs")
FILES, PACKS = (pytest.mark.parametrize("layout", [layout]) for layout in LAYOUTS)

_T = TypeVar("_T")
_ERRORS = {error.code: error for error in CATALOGUE}


def cut(path: Path, size_bytes: int) -> None:
    """What a disk does to a sealed file: nobody but root could, as long as it is sealed."""
    path.chmod(0o600)
    os.truncate(path, size_bytes)
    path.chmod(0o400)


class Log(MetadataClient):
    """The coordinators, without the wire: calls go to a state machine."""

    def __init__(self, state: State) -> None:
        nobody = CoordinatorRecord(coordinator_id="c1", address="127.0.0.1", peer_port=1, api_port=1)
        super().__init__(Identity("test", Role.NODE, "n1"), [nobody], ssl.create_default_context)
        self.state = state
        self.lost_answers = 0  # so many of the next reports arrive, and nobody hears of it
        self.lost_reports = 0  # so many of the next ones do not arrive
        self.asked: list[str] = []
        self.when_told: Callable[[], object] = lambda: (
            None
        )  # once orphans were told, before anybody hears of it

    async def propose(
        self, command: AnyCommand, reply_type: type[_T], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> _T:
        del timeout_s
        if isinstance(command, ReportDropped | ReportLost):
            self.asked.append(type(command).__name__)
            if self.lost_reports:
                self.lost_reports -= 1
                raise Unavailable("lost on its way")
        answer = self.state.apply(command)
        if isinstance(command, ReportOrphans):
            self.when_told()
        if self.lost_answers and isinstance(command, ReportDropped | ReportLost):
            self.lost_answers -= 1
            raise Unavailable("the answer was lost")
        return _answer(answer, reply_type)

    async def read(self, query: AnyQuery, reply_type: type[_T], *, timeout_s: float = CALL_TIMEOUT_S) -> _T:
        del timeout_s
        if isinstance(query, ListReplicasToDelete):
            self.asked.append("ListReplicasToDelete")
        return _answer(self.state.ask(query), reply_type)


def _answer(value: Any, reply_type: type[_T]) -> _T:
    if isinstance(value, Refusal):
        raise _ERRORS[value](value.details)
    return msgspec.convert(value, type=reply_type)


class Keeper:
    """The node n1: its disk, and a process that can end and begin anew. `packed`: small blobs lie in packs.

    What `lose`, `rot` and their like do is the same harm to a file and to a record of a pack.
    """

    def __init__(self, directory: Path, *, packed: bool = False) -> None:
        self.directory, self.packed = directory / "data", packed
        self.state = State(directory / "state")
        self.state.nodes(*NODES)
        self.log = Log(self.state)
        self.dice = random.Random(7)
        self.later_s = 0.0
        self.start()

    def start(self) -> None:
        """A process begins."""
        self.disk, self.blobs = DiskWorkers(), BlobStore(self.directory)
        self.blobs.packed.takes_new = lambda: self.packed
        self.registry = CollectorRegistry()
        self.metrics = NodeMetrics(self.registry)
        self.audit = AuditLog(self.directory / "housekeeping.log")
        self.context = CustodyContext(
            "n1",
            self.log,
            View(self.log, lambda: HeartbeatCall(0, 0, 0)),
            self.blobs,
            self.disk,
            self.metrics,
            self.audit,
            Budget(),
            clock_s=lambda: time.time() + self.later_s,
        )
        peers = PeerClient(ssl.create_default_context, self.log, self.context.view)
        self.custody = Custody(self.context, self.directory / "scrub.json", peers)

    def end(self) -> None:
        """The process is gone; what it did to the disk stays."""
        self.disk.close()
        self.blobs.close()
        self.audit.close()

    def restart(self) -> None:
        self.end()
        self.start()

    def close(self) -> None:
        """The process is gone, and the coordinators with it."""
        self.end()
        self.state.store.close()

    def now_ms(self) -> int:
        """Now, by the clock of the node."""
        return int(self.context.clock_s() * 1000)

    def cycle(self) -> Cycle:
        """One that begins now."""
        return Cycle(began_at_ms=self.now_ms())

    def content(self) -> bytes:
        """New content."""
        return self.dice.randbytes(SIZE_BYTES)

    def put(self, content: bytes) -> str:
        """A blob on the disk, of which the log knows nothing; its name."""
        name = hashlib.sha256(content).hexdigest()
        with self.blobs.receive(name, len(content)) as writer:
            writer.write(content)
            writer.finish()
        return name

    def store(self, content: bytes | None = None, *, nodes: tuple[str, ...] = NODES) -> str:
        """A file of which these nodes have a replica; the name of the blob."""
        name = self.put(self.content() if content is None else content)
        acts.put(self.state, f"file-{name}", name, *nodes, as_of=self.state.log_index)
        return name

    def doom(self, *names: str) -> None:
        """The files go, and with them the need for the blobs."""
        for name in names:
            acts.delete(self.state, f"file-{name}")
        acts.collect(self.state)

    def path(self, name: str) -> Path:
        """Of a blob that is a file."""
        return self.directory / "blobs" / name[:2] / name[2:4] / name

    def age(self, *names: str, by_s: float = 2 * DAY_S) -> None:
        """These blobs came earlier than they did."""
        at_s = time.time() - by_s
        for name in names:
            if packed_content(self.directory, name) is not None:
                age_packed(self.directory, name, at_s)
                continue
            for path in (self.path(name), self.path(name + SIDECAR)):
                os.utime(path, (at_s, at_s))

    def lose(self, name: str) -> None:
        """The replica is not there any more."""
        if packed_content(self.directory, name) is not None:
            lose_packed(self.directory, name)
        else:
            self.path(name).unlink()

    def cut(self, name: str, size_bytes: int) -> None:
        """Its end is not there any more."""
        if packed_content(self.directory, name) is None:
            cut(self.path(name), size_bytes)
            return
        self._isolate(name)
        found = packed_present(self.directory, name)
        os.truncate(found.pack, found.start + size_bytes)

    def identity(self, name: str) -> tuple[int, int]:
        """As `BlobDamaged.file` has it."""
        return self.blobs.identity(name)[0]

    def content_on_disk(self, name: str) -> bytes:
        """What lies there, be it sound or not."""
        found = packed_content(self.directory, name)
        return self.path(name).read_bytes() if found is None else found.read()

    def _isolate(self, name: str) -> None:
        """It is the last one in a pack that takes no more."""
        store, at_s = self.blobs.packed.store, self.blobs.affirmed_at_s(name)
        sha256, content = bytes.fromhex(name), packed_present(self.directory, name).read()
        with opened_index(self.directory) as db:
            unclaimed = db.execute("SELECT * FROM unclaimed WHERE sha256 = ?", (sha256,)).fetchall()
        store.put([(sha256, content)])
        store.seal()
        age_packed(self.directory, name, at_s)
        with opened_index(self.directory) as db:
            db.execute("DELETE FROM unclaimed WHERE sha256 = ?", (sha256,))
            db.executemany("INSERT INTO unclaimed VALUES (?, ?)", unclaimed)

    def exchange(self, first: str, second: str) -> None:
        """Each lies under the other's name, and so do their checksums."""
        if packed_content(self.directory, first) is not None:
            exchange_packed(self.directory, first, second)
            return
        for end in ("", SIDECAR):
            one, other = (self.path(name).with_name(name + end) for name in (first, second))
            aside = self.directory / "aside"
            one.rename(aside)
            other.rename(one)
            aside.rename(other)

    def rot(self, name: str) -> None:
        """One bit of the replica is another."""
        if packed_content(self.directory, name) is not None:
            rot_packed(self.directory, name)
            return
        path = self.path(name)
        content = bytearray(path.read_bytes())
        content[0] ^= 1
        path.chmod(0o600)
        path.write_bytes(content)

    def held(self) -> list[str]:
        """What the log names this node for."""
        listed = self.state.ask(ListReplicas(node_id="n1"))["replicas"]
        return [replica["sha256"] for replica in listed]

    def on_disk(self) -> list[str]:
        return list(self.blobs.iterate())

    def quarantined(self) -> list[str]:
        return [name for name, _ in Quarantine(self.blobs).names()]

    async def look(self) -> None:
        """All that the loops of custody would do now, one after the other."""
        await self.custody.settle_losses()
        for work in self.custody.works:
            await work.do_due()

    async def collect(self, *, yes_really: bool = False) -> dict[str, int]:
        run = Pass(yes_really)
        await self.custody.collect(run)
        return run.counts

    async def compare(self, *, yes_really: bool = False) -> dict[str, int]:
        run = Pass(yes_really)
        await self.custody.compare(run)
        return run.counts

    def audited(self, action: str) -> list[str]:
        """What the log of housekeeping says was done so to which blobs."""
        path = self.directory / "housekeeping.log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line["object"] for line in map(msgspec.json.decode, lines) if line["action"] == action]


async def until_stopped(keeper: Keeper, order_id: str, kind: str) -> dict[str, int]:
    """Look until the order is carried out; its counts."""
    orders = keeper.custody.orders[kind]
    while (standing := orders.give(order_id, yes_really=False)).state == "running":
        await keeper.look()
        await asyncio.sleep(0)
    assert standing.state == "completed", standing.reason
    return standing.counts
