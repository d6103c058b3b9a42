"""Which process may speak for a node, and which coordinator may ask."""

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ca.errors import Conflict, Gone, InvalidRequest, Unauthorized, Unavailable
from ca.identity import Identity, Role
from ca.tls import Peer
from coordinator.admission import Admission
from coordinator.rpc.state_view import StateView
from metadata.model.instance import Instance
from metadata.model.records import DOWN
from metadata.protocol import commands
from metadata.protocol.calls import HeartbeatCall, ReadCall, SnapshotCall
from metadata.protocol.queries import GetView
from metadata.rpc.node_health import PLACEABLE_S, REFUSED_S, NodeHealth
from tests.unit.state import ADMIN, State, certificate

CLUSTER = "test"
FIRST = Instance("a" * 16, 5, "1" * 16)
COPY = Instance("a" * 16, 6, "2" * 16)  # the same directory, copied, and started once more
OTHER = Instance("b" * 16, 1, "3" * 16)
STARTED_S = 1000.0
LOSSES = commands.ReportLost(node_id="n1", sha256s=["sha"], reason="missing")


class World:
    """A coordinator that hears the node n1, at a time that the test moves."""

    def __init__(self, path: Path) -> None:
        self.state = State(path)
        self.state.nodes("n1")
        self.at_s = STARTED_S
        self.health = NodeHealth()
        own = Identity(CLUSTER, Role.COORDINATOR, "c1")
        view = StateView(self.state.store)
        self.membership = Admission(own, self.state.store, view, self.health, clock_s=lambda: self.at_s)

    def receive(self) -> None:
        self.health.receive("n1", HeartbeatCall(1, 2, 0), at_s=self.at_s)

    def announce(self, instance: Instance, *, succeeds: str = "") -> None:
        """Raises what an announcement over a connection of this process is refused with."""
        self.membership.check(peer(instance))
        self.membership.require_speaker(peer(instance), announcement(instance, succeeds))
        self.state.done(announcement(instance, succeeds))

    def rival(self) -> str:
        return self.health.rival("n1", at_s=self.at_s)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "state.sqlite")
    with closing(made.state.store):
        made.announce(FIRST)
        made.receive()
        yield made


def peer(instance: Instance | None, *, serial: str = "serial-n1", node_id: str = "n1") -> Peer:
    told = "" if instance is None else str(instance)
    return Peer(Identity(CLUSTER, Role.NODE, node_id), serial, 0, 10**15, told)


def announcement(instance: Instance, succeeds: str = "") -> commands.AnnounceNode:
    return commands.AnnounceNode(
        node_id="n1", peer_port=7, zone="", weight=1, instance=str(instance), succeeds=succeeds
    )


def test_copy_is_refused_and_told_while_its_original_is_heard(world: World) -> None:
    with pytest.raises(Unavailable):
        world.announce(COPY)
    assert "another process of this name" in world.rival()
    with pytest.raises(Unavailable):
        world.membership.require_speaker(peer(COPY), LOSSES)
    world.membership.require_speaker(peer(FIRST), LOSSES)
    world.at_s += REFUSED_S
    assert world.rival() == ""


def test_later_start_is_taken_when_nobody_was_heard_for_a_while(world: World) -> None:
    world.at_s += PLACEABLE_S
    world.announce(COPY)
    for speaks in (FIRST, OTHER):
        with pytest.raises(Conflict):
            world.membership.check(peer(speaks))
        assert world.rival()


def test_restart_that_knows_of_the_end_of_the_one_before_waits_for_nothing(world: World) -> None:
    world.announce(Instance(FIRST.directory, 6, "9" * 16), succeeds=FIRST.process)
    assert not world.rival()


def test_new_leader_that_has_heard_nobody_yet_takes_no_copy(world: World) -> None:
    begun = Admission(
        Identity(CLUSTER, Role.COORDINATOR, "c2"),
        world.state.store,
        StateView(world.state.store),
        NodeHealth(),
        clock_s=lambda: world.at_s,
    )
    with pytest.raises(Unavailable):
        begun.require_speaker(peer(COPY), announcement(COPY))
    world.at_s += PLACEABLE_S
    begun.require_speaker(peer(COPY), announcement(COPY))


def test_copy_renews_no_certificate_while_its_original_is_heard(world: World) -> None:
    with pytest.raises(Unavailable):
        world.membership.require_ended(peer(COPY))
    world.membership.require_ended(peer(FIRST))
    world.at_s += PLACEABLE_S  # one that was switched off when it should have renewed
    world.membership.require_ended(peer(COPY))


def test_process_of_an_older_version_says_nothing_and_is_taken(world: World) -> None:
    world.membership.check(peer(None))
    assert world.membership.is_active_process(peer(None))


def test_only_who_speaks_is_heard(world: World) -> None:
    assert world.membership.is_active_process(peer(FIRST))
    assert not world.membership.is_active_process(peer(COPY))


def test_certificate_that_was_never_issued_and_a_revoked_one_are_refused(world: World) -> None:
    with pytest.raises(Unauthorized):
        world.membership.check(peer(FIRST, serial="forged"))
    world.state.done(commands.RevokeNode(caller=ADMIN, node_id="n1"))
    with pytest.raises(Unauthorized):
        world.membership.check(peer(FIRST))


@pytest.mark.parametrize("address", ["c1.coordinator.test.internal", "*.lab.example", "255.255.255.255", ""])
def test_address_that_no_certificate_may_be_for_is_taken_from_no_member(world: World, address: str) -> None:
    """Whoever signs next for that node would sign it."""
    move = commands.MoveNode(caller=ADMIN, node_id="n1", address=address)
    with pytest.raises(InvalidRequest, match=r"^address: "):
        world.membership.require_speaker(peer(FIRST), move)


def test_node_that_does_not_know_the_rules_in_force_is_refused_and_told(world: World) -> None:
    known, beat = world.state.store.rules(), HeartbeatCall(1, 2, 0)
    world.membership.require_rules(peer(FIRST), msgspec.structs.replace(beat, rules=known))
    assert not world.health.is_too_old("n1", at_s=world.at_s)
    with pytest.raises(Conflict, match=f"node n1 is older than .* rules {known}. Install"):
        world.membership.require_rules(peer(FIRST), msgspec.structs.replace(beat, rules=known - 1))
    assert world.health.is_too_old("n1", at_s=world.at_s)
    world.receive()
    assert not world.health.is_too_old("n1", at_s=world.at_s)
    coordinator = Identity(CLUSTER, Role.COORDINATOR, "c2")
    world.membership.require_rules(
        Peer(coordinator, "serial-c2", 0, 10**15, ""), beat
    )  # it asks for the view


def test_rules_wait_for_nodes_that_are_not_heard_yet_and_not_for_those_down(world: World) -> None:
    nodes = StateView(world.state.store)().nodes
    assert world.health.rules(nodes) == {"n1": 0}
    world.health.receive("n1", HeartbeatCall(1, 2, 0, rules=7), at_s=world.at_s)
    assert world.health.rules(nodes) == {"n1": 7}
    assert NodeHealth().rules(nodes) == {"n1": 0}
    assert NodeHealth().rules([msgspec.structs.replace(nodes[0], state=DOWN)]) == {}
    assert NodeHealth().rules([msgspec.structs.replace(nodes[0], peer_port=0)]) == {}


def test_coordinator_that_is_not_known_gets_the_view_and_nothing_else(world: World) -> None:
    def asks(coordinator_id: str, call: Any) -> None:
        identity = Identity(CLUSTER, Role.COORDINATOR, coordinator_id)
        world.membership.require_known(Peer(identity, "any", 0, 10**15), call)

    asks("c1", SnapshotCall(1))
    asks("forged", ReadCall(GetView()))
    asks("forged", HeartbeatCall(0, 0, 0))
    with pytest.raises(Unavailable):
        asks("forged", SnapshotCall(1))


def forgotten(*, not_before_ms: int = 5_000, instance: Instance = FIRST, node_id: str = "n1") -> Peer:
    """What a node shows that has renewed its certificate after the snapshot."""
    shown = peer(instance, serial="renewed since", node_id=node_id)
    return dataclasses.replace(shown, not_before_ms=not_before_ms)


def test_forgotten_certificate_is_for_the_leader_to_record_before_it_counts(world: World) -> None:
    assert not world.membership.is_forgotten(forgotten())
    world.state.done(commands.RecordRestore(history="cafe"))
    assert world.membership.is_forgotten(forgotten())
    with pytest.raises(Unavailable, match="leader has to record"):
        world.membership.check(forgotten())
    assert world.rival() == ""
    of = certificate("renewed since")
    of = msgspec.structs.replace(of, not_before_ms=5_000)
    world.state.done(commands.AdmitCertificate(node_id="n1", certificate=of))
    world.membership.check(forgotten())
    assert not world.membership.is_forgotten(forgotten())
    with pytest.raises(Unauthorized):
        world.membership.check(peer(FIRST))  # the one from before the snapshot has ended


def test_forgotten_certificate_of_another_directory_is_not_recorded(world: World) -> None:
    """The node was removed after the snapshot, say, and another machine has joined under its name."""
    world.state.done(commands.RecordRestore(history="cafe"))
    for shown in (forgotten(instance=OTHER), forgotten(instance=Instance("a" * 16, 2, "9" * 16))):
        assert not world.membership.is_forgotten(shown)
        with pytest.raises(Conflict):
            world.membership.check(shown)
        assert world.rival() != ""


def test_unknown_certificate_of_a_node_that_was_never_heard_is_told_with_what_to_do(world: World) -> None:
    world.state.done(commands.RecordRestore(history="cafe"))
    too_late = forgotten(not_before_ms=10**14)
    assert not world.membership.is_forgotten(too_late)
    with pytest.raises(Unauthorized):
        world.membership.check(too_late)
    assert world.rival() == ""  # a follower may lag behind a renewal
    world.health.forget("n1")
    with pytest.raises(Unauthorized):
        world.membership.check(too_late)
    assert "revoke the node" in world.rival()
    with pytest.raises(Gone):
        world.membership.check(forgotten(node_id="n9"))
