"""The cache of file records at a leader that answers calls: who follows it, and who need not."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from ca.certificates import Authority
from ca.tls import Peer
from metadata.model.records import Caller
from metadata.protocol.calls import AnyCall, FollowCall, FollowReply
from metadata.rpc.websocket import end
from node.base import record_cache
from node.base.metrics import NodeMetrics
from node.base.record_cache import RecordCache
from tests.unit.peer_ports import connected, serving

DEADLINE_S = 20.0


class Leading:
    """A leader without news."""

    def __init__(self) -> None:
        self.calls: list[FollowCall] = []

    async def __call__(self, peer: Peer, call: AnyCall) -> bytes:
        assert isinstance(call, FollowCall)
        self.calls.append(call)
        await asyncio.sleep(0.01)
        return msgspec.msgpack.encode(FollowReply(1, 1, [], 0.0 if call.is_leaving else DEADLINE_S))

    async def until_left(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not (self.calls and self.calls[-1].is_leaving):
                await asyncio.sleep(0.01)


async def test_nothing_is_kept_and_nobody_asked_until_the_next_read(
    tmp_path: Path, peer_authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_cache, "UNUSED_S", 0.3)
    leading, caller = Leading(), Caller("somebody", 1)
    async with (
        serving("c1", leading, tmp_path, peer_authority) as record,
        connected("n1", [record], tmp_path, peer_authority) as client,
    ):
        cache = RecordCache(client, NodeMetrics(CollectorRegistry()))
        following = asyncio.create_task(cache.run())
        try:
            await leading.until_left()
            before = leading.calls[-1].subscriber
            assert not cache.is_leased

            assert cache.get(caller, "f1") is None
            async with asyncio.timeout(DEADLINE_S):
                while not cache.is_leased:
                    await asyncio.sleep(0.01)
            assert leading.calls[-1].subscriber != before
        finally:
            await end(following)
