"""A node announces itself, and is ready when its view shows it: before the next regular heartbeat."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from ca.certificates import Authority
from ca.errors import Unavailable
from ca.identity import Role
from ca.tls import Peer
from metadata.model.records import NodeRecord
from metadata.protocol.calls import AnyCall, HeartbeatCall, HeartbeatReply, ProposeCall
from metadata.protocol.commands import AnnounceNode, OpenSession
from metadata.rpc import view as view_module
from metadata.rpc.view import View
from node.base.config import NodeConfig
from node.base.instance import Start
from node.membership.announcement import Announcement
from runtime.clock import now_ms
from tests.unit.peer_ports import CLUSTER, connected, serving
from tests.unit.state import cluster_view

DEADLINE_S = 20.0


@dataclass
class Announced:
    """A coordinator that leads, and knows one node."""

    version: int = 1
    node: NodeRecord = field(
        default_factory=lambda: NodeRecord(
            node_id="n1", address="127.0.0.1", api_port=1, peer_port=0, zone="", weight=1, joined_at_ms=0
        )
    )

    async def __call__(self, peer: Peer, call: AnyCall) -> bytes:
        if isinstance(call, HeartbeatCall):
            return msgspec.msgpack.encode(HeartbeatReply(self.version, "c1", now_ms()))
        if not isinstance(call, ProposeCall):
            view = cluster_view(CLUSTER, nodes=[self.node])
            return msgspec.msgpack.encode(msgspec.structs.replace(view, version=self.version))
        if isinstance(call.command, OpenSession):
            return msgspec.msgpack.encode(call.command.number)
        assert isinstance(call.command, AnnounceNode)
        self.node = msgspec.structs.replace(
            self.node, peer_port=call.command.peer_port, weight=call.command.weight
        )
        self.version += 1
        return msgspec.msgpack.encode(self.node)


async def test_announced_node_is_shown_before_the_next_regular_heartbeat(
    tmp_path: Path, peer_authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_module, "HEARTBEAT_S", 1000 * DEADLINE_S)
    monkeypatch.setattr(view_module, "VIEW_AGE_S_MAX", 1000 * DEADLINE_S)
    config = NodeConfig(
        id="n1", cluster=CLUSTER, address="127.0.0.1", api_port=1, peer_port=2, coordinators=[]
    )
    async with (
        asyncio.timeout(DEADLINE_S),
        serving("c1", Announced(), tmp_path, peer_authority) as record,
        connected("n1", [record], tmp_path, peer_authority, role=Role.NODE) as client,
    ):
        view = View(client, lambda: HeartbeatCall(0, 0, 0))
        announcement = Announcement(config, client, view, Start())
        running = [asyncio.create_task(each.run()) for each in (view, announcement)]
        try:
            await announcement.wait_until_done()
            while True:
                with contextlib.suppress(Unavailable):
                    announcement.require()
                    break
                await asyncio.sleep(0.01)
        finally:
            for each in running:
                each.cancel()
            await asyncio.wait(running)
