"""A coordinator that fails at a call, for the client: another is asked, and a change is made once."""

import pytest

from ca.errors import Internal, Unavailable
from metadata.protocol.calls import AnyCall, ProposeCall
from metadata.rpc.client import MetadataClient
from tests.unit.metadata.rpc.test_client import Answering, change, client, coordinators, read

__all__ = ["client", "coordinators"]  # fixtures


def failing(_: AnyCall) -> Exception:
    return RuntimeError("a row that nobody can read")


@pytest.mark.long
async def test_read_that_fails_at_one_coordinator_is_asked_of_another_and_that_one_last_for_a_while(
    client: MetadataClient, coordinators: list[Answering]
) -> None:
    coordinators[0].refusal = failing
    client._reader = "c1"
    assert [await read(client) for _ in range(5)] == ["c2"] * 5
    assert len(coordinators[0].calls) == 1
    coordinators[1].refusal = lambda _: Unavailable("no quorum")  # now it is the last resort, and asked
    coordinators[0].refusal = lambda _: None
    assert await read(client) == "c1"


async def test_read_that_fails_at_every_coordinator_fails_for_its_caller(
    client: MetadataClient, coordinators: list[Answering]
) -> None:
    for one in coordinators:
        one.refusal = failing
    with pytest.raises(Internal):
        await read(client)
    assert [len(one.calls) for one in coordinators] == [1, 1]


async def test_change_at_which_the_leader_fails_is_made_once_by_whoever_leads_then(
    client: MetadataClient, coordinators: list[Answering]
) -> None:
    def end_of_its_lead(_: AnyCall) -> Exception:
        coordinators[1].refusal = lambda _: None
        return RuntimeError("the leader ends")

    coordinators[0].refusal = end_of_its_lead
    assert await change(client) == "c2"
    (first,), (second,) = coordinators[0].calls, coordinators[1].calls
    assert isinstance(first, ProposeCall)
    assert isinstance(second, ProposeCall)
    assert (first.session, first.sequence) == (second.session, second.sequence)


async def test_change_at_which_the_only_leader_fails_again_fails_for_its_caller(
    client: MetadataClient, coordinators: list[Answering]
) -> None:
    coordinators[0].refusal = failing
    with pytest.raises(Internal):
        await change(client)
    assert len(coordinators[0].calls) == 2
