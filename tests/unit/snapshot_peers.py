"""A coordinator that hands out snapshots at its peer port."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from ca.certificates import Authority
from ca.errors import Conflict, Unavailable
from ca.identity import Identity, Role
from ca.tls import Peer
from coordinator.storage.snapshot_store import SnapshotStore
from metadata.protocol.calls import AnyCall, SnapshotCall, SnapshotChunkCall
from metadata.rpc.client import MetadataClient
from tests.unit.peer_ports import CLUSTER, contexts_of, serving
from tests.unit.snapshot_files import taken


@asynccontextmanager
async def peer(
    snapshots: SnapshotStore, directory: Path, authority: Authority, refusals: Sequence[str] = ()
) -> AsyncIterator[Callable[[], MetadataClient]]:
    """Another coordinator, which makes a snapshot when it is asked; clients of it. `refusals` come before."""
    left = list(refusals)

    async def answer(_: Peer, call: AnyCall) -> bytes:
        if isinstance(call, SnapshotCall):
            if left:
                raise Conflict(left.pop(0))
            if (newest := snapshots.newest()) is None:
                taken(snapshots, origin="c2")
            elif newest.index < call.index_min:
                raise Unavailable("older")
            return msgspec.msgpack.encode(newest)
        assert isinstance(call, SnapshotChunkCall)
        return msgspec.msgpack.encode(snapshots.chunk(call.index, call.term, call.offset))

    async with serving("c2", answer, directory, authority) as record:
        contexts = contexts_of("c1", directory, authority)
        identity = Identity(CLUSTER, Role.COORDINATOR, "c1")
        yield lambda: MetadataClient(identity, [record], contexts.client)
