"""The leader raises the rules when the last of the coordinators knows them, and not before. Real sockets."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from ca.certificates import Authority
from ca.errors import InvalidRequest, Unavailable
from ca.tls import Peer
from coordinator.member.rules_upgrade import Upgrades
from metadata.protocol.calls import AnyCall, RulesCall
from metadata.protocol.commands import AddIntermediate, RaiseRules
from metadata.protocol.rules import FIRST, RULES, SINCE
from tests.unit.coordinator.reconcile.test_job_runs import member
from tests.unit.peer_ports import connected, serving
from tests.unit.state import ADMIN, cluster_view, coordinator

LOOK_S = 0.01
LOOKS = 5


class Other:
    """A coordinator of some version; `knows` None: of one that does not know the question."""

    def __init__(self, knows: int | None) -> None:
        self.knows = knows
        self.asked = 0

    async def handle(self, peer: Peer, call: AnyCall) -> bytes:
        assert isinstance(call, RulesCall)
        self.asked += 1
        if self.knows is None:
            raise InvalidRequest("an unknown call")
        return msgspec.msgpack.encode(self.knows)


async def rules_in_the_end(
    directory: Path, authority: Authority, other: Other, *absent: str, nodes: Mapping[str, int] | None = None
) -> int:
    """Those in force once they were raised, or the other one was asked often enough.

    `nodes`: what each of them knows.
    """
    async with (
        member(directory, rules=FIRST) as (driver, store),
        serving("c2", other.handle, directory, authority) as record,
        connected("c1", [record], directory, authority) as client,
    ):
        known = [coordinator("c1"), record, *map(coordinator, absent)]
        everybody = cluster_view("test", coordinators=known)
        upgrades = Upgrades(
            "c1", driver, store, client, lambda: everybody, lambda _: nodes or {}, look_s=LOOK_S
        )
        running = asyncio.create_task(upgrades.run())
        while other.asked < LOOKS and store.rules() == FIRST:
            await asyncio.sleep(LOOK_S)
        running.cancel()
        await asyncio.wait([running])
        return store.rules()


@pytest.mark.parametrize(("knows", "expected"), [(None, FIRST), (FIRST, FIRST), (RULES, RULES), (99, RULES)])
async def test_rules_are_those_that_every_coordinator_knows(
    tmp_path: Path, peer_authority: Authority, knows: int | None, expected: int
) -> None:
    assert await rules_in_the_end(tmp_path, peer_authority, Other(knows)) == expected


async def test_coordinator_that_does_not_answer_is_waited_for(
    tmp_path: Path, peer_authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says for whom, once; the other one may be slow at first, on a busy machine."""
    other = Other(RULES)
    assert await rules_in_the_end(tmp_path, peer_authority, other, "c3") == FIRST
    assert other.asked >= LOOKS
    told = [record for record in caplog.records if record.name == "coordinator.member.rules_upgrade"]
    waited_for = [vars(record)["coordinators"] for record in told if record.levelname == "WARNING"]
    assert waited_for in ([["c3"]], [["c2", "c3"], ["c3"]])


async def test_node_of_an_older_version_is_waited_for(
    tmp_path: Path, peer_authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = {"n1": RULES, "n2": 0}
    assert await rules_in_the_end(tmp_path, peer_authority, Other(RULES), nodes=nodes) == FIRST
    told = [record for record in caplog.records if record.levelname == "WARNING"]
    assert ["n2"] in [vars(record).get("nodes") for record in told]
    (tmp_path / "upgraded").mkdir()
    nodes["n2"] = RULES
    assert await rules_in_the_end(tmp_path / "upgraded", peer_authority, Other(RULES), nodes=nodes) == RULES


async def test_command_that_older_programs_cannot_read_is_not_proposed_before(tmp_path: Path) -> None:
    command = AddIntermediate(caller=ADMIN, pem="pem", wrapped=b"wrapped")
    async with member(tmp_path, rules=SINCE[AddIntermediate] - 1) as (driver, store):
        with pytest.raises(Unavailable, match=r"Upgrade.* start .* remove those that are gone"):
            await driver.propose(command)
        await driver.propose(RaiseRules(version=RULES))
        await driver.propose(command)
        assert store.key("intermediate")[1] == "pem"
