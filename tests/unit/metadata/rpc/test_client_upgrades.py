"""Coordinators of an older version, for the client: what they do not know is asked of another."""

import asyncio

import msgspec
import pytest

from ca.errors import InvalidRequest, Unavailable
from coordinator.rpc.server import Refused
from deploy.processes import free_ports
from metadata.model.rules import OLDER_MEMBERS, RULES, NotInForce
from metadata.protocol.calls import AnyCall, HeartbeatCall, ProposeCall
from metadata.protocol.commands import AddIntermediate, HashState, OpenSession, UpdateProjectFile
from metadata.protocol.queries import CountSoleReplicas, GetView, ListNodes
from metadata.protocol.sign_in_calls import TestProviderCall
from metadata.rpc import wire
from metadata.rpc.client import MetadataClient
from tests.unit.metadata.rpc.test_client import DEADLINE_S, LONG_S, Answering, client, coordinators, read
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
        wire.decoded(msgspec.msgpack.Decoder(OlderRead | OlderPropose), wire.encode_call(call))
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


async def test_change_that_the_rules_in_force_do_not_have_is_refused_at_once_with_what_to_do(
    client: MetadataClient, coordinators: list[Answering]
) -> None:
    for one in coordinators:
        one.refusal = lambda call: NotInForce("upgrade it") if isinstance(call, ProposeCall) else None
    change = AddIntermediate(caller=ADMIN, pem="pem", wrapped=b"wrapped")
    with pytest.raises(Unavailable, match="upgrade it"):
        await client.propose(change, str, timeout_s=LONG_S)
    asked = [call for one in coordinators for call in one.calls if isinstance(call, ProposeCall)]
    assert sum(call.command == change for call in asked) == 1


async def test_field_that_an_older_leader_would_pass_over_is_not_sent_before_the_rules_are_in_force(
    client: MetadataClient, coordinators: list[Answering]
) -> None:
    """Such a leader would say that a file is renamed which keeps its name."""
    renamed = UpdateProjectFile(caller=ADMIN, file_uuid="f", filename="new")
    await beaten(client)
    with pytest.raises(NotInForce, match="Upgrade members"):
        await client.propose(renamed, str, timeout_s=LONG_S)
    assert not any(isinstance(call, ProposeCall) for one in coordinators for call in one.calls)
    for one in coordinators:
        one.rules = RULES
    await beaten(client)
    assert await client.propose(renamed, str, timeout_s=DEADLINE_S) in {"c1", "c2"}


async def test_process_that_has_had_no_heartbeat_says_to_try_again_in_a_moment(
    client: MetadataClient, coordinators: list[Answering]
) -> None:
    for one in coordinators:
        one.rules = RULES
    renamed = UpdateProjectFile(caller=ADMIN, file_uuid="f", filename="new")
    with pytest.raises(Unavailable, match="has just started") as refused:
        await client.propose(renamed, str, timeout_s=LONG_S)
    assert refused.value.headers["Retry-After"] == "1"
    await beaten(client)
    assert await client.propose(renamed, str, timeout_s=DEADLINE_S) in {"c1", "c2"}


async def beaten(client: MetadataClient) -> None:
    """Send a heartbeat, once the coordinator is dialled."""
    while await client.heartbeat("c1", HeartbeatCall(0, 0, 0)) is None:
        await asyncio.sleep(0.01)


async def test_sign_in_with_a_provider_is_not_asked_of_older_members(
    client: MetadataClient, coordinators: list[Answering]
) -> None:
    """They know no such call. `since` of commands does not refuse it, as it is none."""
    await beaten(client)
    with pytest.raises(NotInForce, match="Upgrade members"):
        await client.sign_in(TestProviderCall(ADMIN, "uni"), list)
    assert not any(isinstance(call, TestProviderCall) for one in coordinators for call in one.calls)


async def test_query_that_all_coordinators_within_reach_are_too_old_for_is_refused_at_once(
    client: MetadataClient, coordinators: list[Answering]
) -> None:
    for one in coordinators:
        one.refusal = by_an_older_version
    (port,) = free_ports(1)
    records = [one.record for one in coordinators]
    client.update([*records, msgspec.structs.replace(records[0], coordinator_id="c3", peer_port=port)])
    with pytest.raises(NotInForce, match="Upgrade it"):
        await client.read(CountSoleReplicas(node_id="n1", others=[]), str, timeout_s=LONG_S)


async def test_refusal_of_a_coordinator_that_nothing_will_change_soon_stays_one(
    client: MetadataClient, coordinators: list[Answering]
) -> None:
    """The state machine refuses with the same code what may be otherwise in a moment."""
    change = AddIntermediate(caller=ADMIN, pem="pem", wrapped=b"wrapped")
    for details, is_for_later in ((OLDER_MEMBERS, True), ("Look again.", False)):

        def refuse(call: AnyCall, details: str = details) -> Refused | None:
            return Refused(Unavailable.code, details) if isinstance(call, ProposeCall) else None

        for one in coordinators:
            one.refusal = refuse
        with pytest.raises(Unavailable, match=details) as refused:
            await client.propose(change, str, timeout_s=LONG_S)
        assert isinstance(refused.value, NotInForce) == is_for_later


async def test_what_older_coordinators_do_not_know_is_unavailable_until_they_are_upgraded(
    client: MetadataClient, coordinators: list[Answering]
) -> None:
    for one in coordinators:
        one.refusal = by_an_older_version
    with pytest.raises(Unavailable, match="Upgrade it"):
        await client.read(CountSoleReplicas(node_id="n1", others=[]), str, timeout_s=LONG_S)
    with pytest.raises(Unavailable, match="Upgrade it"):
        await client.propose(
            AddIntermediate(caller=ADMIN, pem="pem", wrapped=b"wrapped"), str, timeout_s=LONG_S
        )
    assert await read(client) in {"c1", "c2"}
