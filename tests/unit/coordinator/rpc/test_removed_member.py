"""A member that was removed from the cluster says so, and not that it has lost the coordinators."""

import asyncio
from pathlib import Path

import pytest

from ca.certificates import Authority
from ca.errors import Conflict, FilestoreError, Gone, Unauthorized, Unavailable
from ca.identity import Role
from ca.tls import Peer
from metadata.protocol.calls import AnyCall, HeartbeatCall
from metadata.rpc.view import View
from tests.unit.peer_ports import connected, serving

DEADLINE_S = 20.0


async def never(_peer: Peer, _call: AnyCall) -> bytes:
    raise AssertionError("whoever is refused asks nothing")


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (Gone("This node was removed from the cluster."), "was removed from the cluster. Stop it"),
        (Unauthorized("a dead certificate"), "has lost contact with the coordinators"),
    ],
)
async def test_readiness_tells_a_removed_member_from_one_that_is_cut_off(
    tmp_path: Path, peer_authority: Authority, refusal: FilestoreError, words: str
) -> None:
    dialled, often = 0, asyncio.Event()

    def refuse(_peer: Peer) -> None:
        nonlocal dialled
        dialled += 1
        if dialled > 2:
            often.set()
        raise refusal

    async with (
        asyncio.timeout(DEADLINE_S),
        serving("c1", never, tmp_path, peer_authority, check=refuse) as record,
        connected("n1", [record], tmp_path, peer_authority, role=Role.NODE) as metadata,
    ):
        await often.wait()  # so that the first refusal has come back
        view = View(metadata, lambda: HeartbeatCall(0, 0, 0))
        with pytest.raises(Unavailable, match=words):
            view.require_fresh()


async def test_member_whose_heartbeats_are_refused_says_why_and_logs_it_once(
    tmp_path: Path, peer_authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    beats, often = 0, asyncio.Event()

    async def refuse(_peer: Peer, call: AnyCall) -> bytes:
        nonlocal beats
        assert isinstance(call, HeartbeatCall)
        beats += 1
        if beats > 2:
            often.set()
        raise Conflict("Install the version of the other members")

    async with (
        asyncio.timeout(DEADLINE_S),
        serving("c1", refuse, tmp_path, peer_authority) as record,
        connected("n1", [record], tmp_path, peer_authority, role=Role.NODE) as metadata,
    ):
        view = View(metadata, lambda: HeartbeatCall(0, 0, 0))
        running = asyncio.create_task(view.run())
        await often.wait()
        with pytest.raises(Unavailable, match="refuse this member: Install the version of the other members"):
            view.require_fresh()
        running.cancel()
        await asyncio.wait([running])
    told = [each.getMessage() for each in caplog.records if each.name == "metadata.rpc.view"]
    assert told == ["heartbeats are refused: Install the version of the other members"]
