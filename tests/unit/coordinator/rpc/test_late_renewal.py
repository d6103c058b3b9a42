"""A node that was switched off when its certificate should have been renewed, over real sockets."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from ca.certificates import LATE_RENEWAL_MS, Authority
from ca.errors import Unavailable
from ca.identity import Role
from ca.tls import Peer
from metadata.protocol.calls import AnyCall, FollowCall, JoinReply, RenewCall
from metadata.rpc.client import MetadataClient
from tests.unit.peer_ports import connected, contexts_of, serving, write_credential

LATE_DAYS = LATE_RENEWAL_MS / (24 * 3600 * 1000)
DEADLINE_S = 20.0
MOMENT_S = 1.5  # for one that is refused: nobody tells it, it goes on dialling
FOLLOW = FollowCall(subscriber="p", term=0, acknowledged=0)


class Coordinator:
    """What it was asked for, and by whom."""

    def __init__(self) -> None:
        self.heard: list[AnyCall] = []

    async def handle(self, peer: Peer, call: AnyCall) -> bytes:
        assert peer.identity.id == "n1"
        self.heard.append(call)
        return msgspec.msgpack.encode(JoinReply("root", "certificate"))


async def is_renewed(client: MetadataClient, *, within_s: float = DEADLINE_S) -> bool:
    """Whether a new certificate is to be had."""
    try:
        async with asyncio.timeout(within_s):
            return (await client.renew("csr")).node_cert == "certificate"
    except (TimeoutError, Unavailable):
        return False


@pytest.mark.parametrize(
    ("role", "made_days_ago", "expected"),
    [
        (Role.NODE, 6.9, True),
        (Role.NODE, 7.1, True),
        (Role.NODE, LATE_DAYS + 6.9, True),
        (Role.NODE, LATE_DAYS + 7.1, False),
        (Role.NODE, -1.0, True),
        (Role.NODE, 0.1 - LATE_DAYS, True),
        (Role.NODE, -0.1 - LATE_DAYS, False),
        (Role.COORDINATOR, 6.9, True),
        (Role.COORDINATOR, 7.1, False),
        (Role.COORDINATOR, -1.0, False),
    ],
)
async def test_who_may_ask_for_a_certificate(
    tmp_path: Path, peer_authority: Authority, role: Role, made_days_ago: float, expected: bool
) -> None:
    contexts = contexts_of("n1", tmp_path, peer_authority, role=role, made_days_ago=made_days_ago)
    async with (
        serving("c1", Coordinator().handle, tmp_path, peer_authority) as record,
        connected("n1", [record], tmp_path, peer_authority, role=role, contexts=contexts) as client,
    ):
        assert await is_renewed(client, within_s=DEADLINE_S if expected else MOMENT_S) is expected


async def test_expired_node_gets_nothing_else_until_it_dials_with_a_new_certificate(
    tmp_path: Path, peer_authority: Authority
) -> None:
    contexts = contexts_of("n1", tmp_path, peer_authority, role=Role.NODE, made_days_ago=10)
    coordinator = Coordinator()
    async with (
        serving("c1", coordinator.handle, tmp_path, peer_authority) as record,
        connected("n1", [record], tmp_path, peer_authority, role=Role.NODE, contexts=contexts) as client,
    ):
        assert await is_renewed(client)
        with pytest.raises(Unavailable):
            await client.follow(FOLLOW, timeout_s=1.0)
        assert coordinator.heard == [RenewCall("csr")]
        write_credential(contexts.credential, "n1", peer_authority, role=Role.NODE)
        contexts.reload()
        async with asyncio.timeout(10):
            await client.renew("csr")
            with pytest.raises(msgspec.ValidationError):  # an answer at last, if not to this
                await client.follow(FOLLOW, timeout_s=10.0)
        assert isinstance(coordinator.heard[-1], FollowCall)
