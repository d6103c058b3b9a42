"""Coordinators of an older version, for the client: what they do not know is asked of another."""

import msgspec
import pytest

from ca.errors import InvalidRequest, Unavailable
from coordinator.protocol.calls import AnyCall
from coordinator.protocol.commands import AddIntermediate, HashState, OpenSession
from coordinator.protocol.queries import CountSoleReplicas, GetView, ListNodes
from coordinator.rpc import wire
from coordinator.rpc.client import MetadataClient
from tests.unit.coordinator.rpc.test_client import DEADLINE_S, LONG_S, Answering, client, coordinators, read
from tests.unit.state import ADMIN

__all__ = ["client", "coordinators"]  # fixtures


class OlderRead(msgspec.Struct, frozen=True, tag="read"):
    """ReadCall as a version has it that knows fewer queries."""

    query: GetView | ListNodes


class OlderPropose(msgspec.Struct, frozen=True, tag="propose"):
    """ProposeCall as a version has it that knows fewer commands."""

    command: OpenSession | HashState


def by_an_older_version(call: AnyCall) -> InvalidRequest | None:
    """How a coordinator of that version refuses a call; None if it knows it."""
    try:
        wire._decoded(msgspec.msgpack.Decoder(OlderRead | OlderPropose), wire.encode_call(call))
    except InvalidRequest as refusal:
        return refusal
    return None


@pytest.mark.parametrize("older", ["c1", "c2"])
async def test_query_that_an_older_coordinator_does_not_know_is_asked_of_another(
    client: MetadataClient, coordinators: list[Answering], older: str
) -> None:
    one, other = sorted(coordinators, key=lambda each: each.coordinator_id != older)
    one.refusal = by_an_older_version
    for _ in range(2):
        client._reader = older
        query = CountSoleReplicas(node_id="n1", others=[])
        assert await client.read(query, str, timeout_s=DEADLINE_S) == other.coordinator_id
    assert one.calls


async def test_what_older_coordinators_do_not_know_is_unavailable_until_they_are_upgraded(
    client: MetadataClient, coordinators: list[Answering]
) -> None:
    for one in coordinators:
        one.refusal = by_an_older_version
    with pytest.raises(Unavailable, match="upgrade it"):
        await client.read(CountSoleReplicas(node_id="n1", others=[]), str, timeout_s=LONG_S)
    with pytest.raises(Unavailable, match="upgrade it"):
        await client.propose(
            AddIntermediate(caller=ADMIN, pem="pem", wrapped=b"wrapped"), str, timeout_s=LONG_S
        )
    assert await read(client) in {"c1", "c2"}
