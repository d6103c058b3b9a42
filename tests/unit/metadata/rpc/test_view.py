"""What a member knows of the cluster, from real peer ports of coordinators that answer as a test likes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from ca.certificates import Authority
from ca.errors import Unauthorized, Unavailable
from ca.tls import Peer
from ca.usertoken import mint, new_signing_key, public_jwk
from metadata.protocol.calls import (
    PROOF_NONE,
    PROOF_NOW,
    PROOF_SOON,
    AnyCall,
    HeartbeatCall,
    HeartbeatReply,
)
from metadata.rpc import view as view_module
from metadata.rpc.client import MetadataClient
from metadata.rpc.view import View
from runtime.clock import now_ms
from tests.unit.peer_ports import CLUSTER, connected, serving
from tests.unit.state import cluster_view

DEADLINE_S = 20.0
DAY_MS = 24 * 3600 * 1000
SIGNING_KEY = new_signing_key()


@dataclass
class Answering:
    """A coordinator of a cluster that c1 leads; a silent one answers no heartbeat. Its clock may be ahead."""

    is_silent: bool = False
    ahead_ms: int = 0
    kept_ms: int = 0
    proofs: list[int] = field(default_factory=list)  # what heartbeats asked for

    async def __call__(self, peer: Peer, call: AnyCall) -> bytes:
        if isinstance(call, HeartbeatCall):
            self.proofs.append(call.proof)
            if self.is_silent:
                await asyncio.Event().wait()
            at_ms = now_ms() + self.ahead_ms
            return msgspec.msgpack.encode(HeartbeatReply(1, "c1", at_ms, kept_ms=self.kept_ms))
        view = msgspec.structs.replace(cluster_view(CLUSTER), user_token_keys=[public_jwk(SIGNING_KEY)])
        return msgspec.msgpack.encode(view)


@pytest.fixture
def coordinators() -> dict[str, Answering]:
    return {"c1": Answering(), "c2": Answering()}


@pytest.fixture
async def client(
    coordinators: dict[str, Answering], tmp_path: Path, peer_authority: Authority
) -> AsyncIterator[MetadataClient]:
    async with AsyncExitStack() as stack:
        records = [
            await stack.enter_async_context(serving(name, one, tmp_path, peer_authority))
            for name, one in coordinators.items()
        ]
        yield await stack.enter_async_context(connected("c9", records, tmp_path, peer_authority))


@contextlib.asynccontextmanager
async def running(view: View) -> AsyncIterator[None]:
    beating = asyncio.create_task(view.run())
    try:
        await asyncio.wait_for(view.wait_until_fresh(), DEADLINE_S)
        yield
    finally:
        beating.cancel()
        await asyncio.wait([beating])


async def until_leader_is(view: View, *, heard: bool) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                view.require_leader()
                if heard:
                    return
            except Unavailable:
                if not heard:
                    return
            await asyncio.sleep(0.01)


async def test_member_that_only_followers_answer_knows_that_changes_fail(
    client: MetadataClient, coordinators: dict[str, Answering], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_module, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(view_module, "VIEW_AGE_S_MAX", 1.0)
    coordinators["c1"].is_silent = True
    view = View(client, lambda: HeartbeatCall(0, 0, 0))
    async with running(view):
        with pytest.raises(Unavailable, match="leading coordinator does not answer"):
            view.require_leader()
        coordinators["c1"].is_silent = False
        await until_leader_is(view, heard=True)
        coordinators["c1"].is_silent = True
        await until_leader_is(view, heard=False)
        await asyncio.wait_for(view.wait_until_fresh(), DEADLINE_S)
        with pytest.raises(Unavailable, match="leading coordinator does not answer"):
            view.require_leader()


async def until_asked(coordinator: Answering, proof: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        coordinator.proofs.clear()
        while proof not in coordinator.proofs:
            await asyncio.sleep(0.01)


async def test_followers_prove_their_answers_only_while_the_leader_is_silent(
    client: MetadataClient, coordinators: dict[str, Answering], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_module, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(view_module, "PROOF_AGE_S_MAX", 1000 * DEADLINE_S)
    view = View(client, lambda: HeartbeatCall(0, 0, 0))
    async with running(view):
        await until_asked(coordinators["c1"], PROOF_SOON)
        await until_asked(coordinators["c2"], PROOF_NONE)
        coordinators["c1"].is_silent = True
        await until_asked(coordinators["c2"], PROOF_NOW)
        await asyncio.wait_for(view.wait_until_fresh(), DEADLINE_S)
        coordinators["c1"].is_silent = False
        await until_asked(coordinators["c2"], PROOF_NONE)


async def test_what_is_not_proved_confirms_nothing(
    client: MetadataClient, coordinators: dict[str, Answering], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_module, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(view_module, "PROOF_AGE_S_MAX", DEADLINE_S)
    view = View(client, lambda: HeartbeatCall(0, 0, 0))
    async with running(view):
        await until_leader_is(view, heard=True)
        await until_asked(coordinators["c2"], PROOF_NONE)
        coordinators["c1"].is_silent = True
        await until_asked(coordinators["c2"], PROOF_NONE)
        confirmed_at = view._confirmed_at
        for _ in range(3):  # the answer to the last but one was read
            await until_asked(coordinators["c2"], PROOF_NONE)
        assert view._confirmed_at == confirmed_at


async def test_view_that_is_asked_for_is_confirmed_without_waiting_for_the_next_heartbeat(
    client: MetadataClient, coordinators: dict[str, Answering], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_module, "HEARTBEAT_S", 1000 * DEADLINE_S)
    view = View(client, lambda: HeartbeatCall(0, 0, 0))
    async with running(view):
        await until_leader_is(view, heard=True)
        await asyncio.wait_for(view.fetch_confirmed(), DEADLINE_S)
        assert coordinators["c1"].proofs[-1] == PROOF_NOW


def token_of(at_ms: int) -> str:
    return mint(
        SIGNING_KEY,
        cluster=CLUSTER,
        subject="somebody",
        generation=1,
        roles=(),
        groups=(),
        now_ms=at_ms,
        ttl_seconds=3600,
        token_id="t1",
    )


@pytest.mark.parametrize("ahead_ms", [-DAY_MS, DAY_MS])
async def test_tokens_begin_and_end_by_the_clock_of_the_leader(
    client: MetadataClient, coordinators: dict[str, Answering], ahead_ms: int
) -> None:
    coordinators["c1"].ahead_ms = ahead_ms
    view = View(client, lambda: HeartbeatCall(0, 0, 0))
    async with running(view):
        await until_leader_is(view, heard=True)
        assert view.verify(token_of(now_ms() + ahead_ms)).subject == "somebody"
        for other_ms in (0, ahead_ms - 3 * 3_600_000):
            with pytest.raises(Unauthorized):
                view.verify(token_of(now_ms() + other_ms))


@pytest.mark.parametrize("kept_ms", [0, 1_000_000])
async def test_time_that_the_leader_keeps_is_told_or_is_its_clock(
    client: MetadataClient, coordinators: dict[str, Answering], kept_ms: int
) -> None:
    for each in coordinators.values():
        each.ahead_ms, each.kept_ms = DAY_MS, kept_ms
    coordinators["c2"].kept_ms = 7
    answers: list[HeartbeatReply] = []
    view = View(client, lambda: HeartbeatCall(0, 0, 0), on_leader=answers.append)
    assert view.kept_ms() is None
    async with running(view):
        await until_leader_is(view, heard=True)
        assert view.kept_ms() == pytest.approx(kept_ms or now_ms() + DAY_MS, abs=60_000)
        assert {answer.kept_ms for answer in answers} == {kept_ms}
