"""Snapshots as transcripts: offered when the log lacks what a member needs, restored or left alone."""

import pytest

from coordinator.raft.core import RaftRole
from coordinator.raft.messages import Entry, EntryKind, HardState, Members, Message, MessageKind, SnapshotMeta
from coordinator.raft.progress import ProgressState
from tests.sim.group import Group, Member, kinds, make_group, make_member

ABC = ("a", "b", "c")
GROUP = Members(ABC)


def lagging() -> Group:
    """A leader a whose log begins at 5; c has nothing."""
    group = make_group(3)
    group.cut = {"c"}
    group.elect("a")
    for number in range(5):
        group["a"].raft.propose([b"x%d" % number])
        group.settle()
    group["a"].storage.forget(4)
    return group


def taken(group: Group, index: int = 5) -> SnapshotMeta:
    """The leader's driver makes a snapshot."""
    leader = group["a"]
    meta = SnapshotMeta(index, leader.storage.term(index), GROUP)
    leader.raft.snapshot_taken(meta)
    return meta


def offer(member: Member, meta: SnapshotMeta, term: int = 3) -> list[Message]:
    """What a member answers to the offer of leader b."""
    member.raft.step(
        Message(
            MessageKind.SNAPSHOT,
            "b",
            member.config.id,
            term,
            log_index=meta.index,
            log_term=meta.term,
            members=meta.members,
        )
    )
    return member.turn()


def test_member_that_needs_compacted_entries_makes_the_leader_ask_for_a_snapshot() -> None:
    group = lagging()
    group.cut = set()

    group.tick(3)

    assert group["a"].is_asked_for_snapshot
    assert group["a"].raft.status().progress["c"].state is ProgressState.SNAPSHOT


def test_nothing_but_offers_and_heartbeats_goes_to_a_member_that_fetches() -> None:
    group = lagging()
    group.cut = set()
    group.tick(3)
    taken(group)
    group.settle()

    group["a"].raft.propose([b"more"])
    sent = [message for message in group.tick(5) if message.target == "c"]

    assert set(kinds(sent)) == {MessageKind.HEARTBEAT, MessageKind.SNAPSHOT}


def test_offer_is_handed_to_the_driver_and_not_acknowledged() -> None:
    group = lagging()
    group.cut = set()
    group.tick(3)
    meta = taken(group)
    group.settle()

    assert group["c"].offer is not None
    assert (group["c"].offer.source, group["c"].offer.meta) == ("a", meta)
    assert group["a"].raft.status().progress["c"].match == 0


def test_restored_member_goes_on_from_the_snapshot() -> None:
    group = lagging()
    group.cut = set()
    group.tick(3)
    meta = taken(group)
    group.settle()

    assert group["c"].raft.restore(meta)
    group.settle()
    index, _ = group["a"].raft.propose([b"after"])
    group.tick()

    assert group["c"].installed == meta
    assert group["c"].storage.first_index() == meta.index + 1
    assert group["c"].applied[0].index == meta.index + 1, "what the snapshot holds is not applied again"
    assert group["c"].applied[-1].data == b"after"
    assert group["a"].raft.status().progress["c"].match == index


def test_acknowledgement_of_a_snapshot_waits_until_it_is_installed() -> None:
    member = make_member("c", ABC, term=3)
    meta = SnapshotMeta(7, 2, GROUP)
    offer(member, meta)

    assert member.raft.restore(meta)
    ready = member.raft.ready()

    assert ready.snapshot == meta
    assert ready.must_sync
    assert ready.hard_state == HardState(3, "", 7)
    assert ready.send_now == []
    assert [(m.kind, m.log_index) for m in ready.send_after_sync] == [(MessageKind.APPEND_REPLY, 7)]


def test_entries_that_come_before_the_snapshot_is_installed_follow_it() -> None:
    member = make_member("c", ABC, (1, 1), term=3)
    meta = SnapshotMeta(7, 2, GROUP)
    offer(member, meta)
    member.raft.restore(meta)

    entry = Entry(8, 3, EntryKind.COMMAND, b"eight")
    member.raft.step(
        Message(MessageKind.APPEND, "b", "c", 3, log_index=7, log_term=2, entries=(entry,), commit=8)
    )
    member.turn()

    assert (member.storage.first_index(), member.storage.last_index()) == (8, 8)
    assert member.applied == [entry]


def test_snapshot_brings_its_membership() -> None:
    member = make_member("c", ABC, term=3)
    meta = SnapshotMeta(7, 2, Members(("b", "c", "d"), ("e",)))
    offer(member, meta)

    member.raft.restore(meta)

    assert member.raft.members == meta.members


def test_offer_of_what_is_committed_here_is_acknowledged_at_once() -> None:
    member = make_member("c", ABC, (1, 1, 2), commit=3, term=3)

    (reply,) = offer(member, SnapshotMeta(2, 1, GROUP))

    assert (reply.kind, reply.log_index, reply.reject) == (MessageKind.APPEND_REPLY, 3, False)
    assert member.offer is None


def test_offer_of_what_the_log_holds_commits_and_keeps_the_log() -> None:
    member = make_member("c", ABC, (1, 1, 2), term=3)

    (reply,) = offer(member, SnapshotMeta(2, 1, GROUP))

    assert (reply.kind, reply.log_index) == (MessageKind.APPEND_REPLY, 2)
    assert member.raft.status().commit == 2
    assert member.storage.last_index() == 3, "what follows may be committed, and acknowledged by us"


def test_snapshot_that_was_overtaken_by_appends_is_not_installed() -> None:
    member = make_member("c", ABC, term=3)
    meta = SnapshotMeta(2, 1, GROUP)
    offer(member, meta)
    entries = tuple(Entry(i, 1, EntryKind.COMMAND, b"") for i in (1, 2, 3))
    member.raft.step(Message(MessageKind.APPEND, "b", "c", 3, entries=entries, commit=3))
    member.turn()

    assert not member.raft.restore(meta)

    assert member.storage.last_index() == 3


def test_snapshot_over_a_log_that_holds_its_end_keeps_the_log() -> None:
    member = make_member("c", ABC, term=3)
    meta = SnapshotMeta(2, 1, GROUP)
    offer(member, meta)
    entries = tuple(Entry(i, 1, EntryKind.COMMAND, b"") for i in (1, 2, 3))
    member.raft.step(Message(MessageKind.APPEND, "b", "c", 3, entries=entries))
    member.turn()

    assert not member.raft.restore(meta)

    assert member.storage.last_index() == 3
    assert member.raft.status().commit == 2


def test_snapshot_replaces_a_log_that_differs() -> None:
    member = make_member("c", ABC, (1, 1, 1, 1), term=3)
    meta = SnapshotMeta(3, 2, GROUP)
    offer(member, meta)

    assert member.raft.restore(meta)
    member.turn()

    assert (member.storage.first_index(), member.storage.last_index()) == (4, 3)


def test_candidate_installs_nothing() -> None:
    member = make_member("c", ABC, term=3)
    member.raft.campaign()
    member.turn()
    assert member.raft.status().role is RaftRole.PRE_CANDIDATE

    assert not member.raft.restore(SnapshotMeta(7, 2, GROUP))


@pytest.mark.parametrize(
    "message",
    [
        Message(MessageKind.SNAPSHOT, "b", "c", 3, log_index=0, log_term=1, members=GROUP),
        Message(MessageKind.SNAPSHOT, "b", "c", 3, log_index=5, log_term=4, members=GROUP),
        Message(MessageKind.SNAPSHOT, "b", "c", 3, log_index=5, log_term=2),
        Message(MessageKind.SNAPSHOT, "b", "c", 3, log_index=5, log_term=2, members=Members(())),
        Message(MessageKind.SNAPSHOT, "b", "c", 3, log_index=5, log_term=2, members=Members(("a", "a"))),
    ],
    ids=["no index", "a term beyond the sender's", "no members", "no voters", "a voter twice"],
)
def test_offer_that_makes_no_sense_is_dropped(message: Message) -> None:
    member = make_member("c", ABC)

    member.raft.step(message)

    assert member.raft.status().messages_refused == 1
    assert member.raft.leader == ""


def test_snapshot_that_the_log_can_not_follow_up_is_not_offered() -> None:
    group = lagging()
    old = SnapshotMeta(3, 1, GROUP)
    group["a"].raft.snapshot_taken(old)
    group.cut = set()

    sent = group.tick(5)

    assert MessageKind.SNAPSHOT not in kinds(sent)
    assert group["a"].is_asked_for_snapshot


def test_leader_of_the_past_that_offers_a_snapshot_is_told_the_term() -> None:
    member = make_member("c", ABC, term=9)

    (reply,) = offer(member, SnapshotMeta(7, 2, GROUP), term=3)

    assert (reply.term, reply.reject) == (9, True)
    assert member.offer is None


def test_restart_behind_a_snapshot_goes_on() -> None:
    group = lagging()
    group.cut = set()
    group.tick(3)
    meta = taken(group)
    group.settle()
    group["c"].raft.restore(meta)
    group["c"].turn()

    group["c"].restart()
    group.tick(5)

    assert group["c"].log() == group["a"].log()[meta.index - 4 :]


def test_committed_entries_are_handed_out_only_so_far_ahead_of_the_state_machine() -> None:
    member = make_member("a", ("a",), applying_bytes_max=100)
    member.raft.campaign()
    member.turn()
    member.raft.propose([b"x" * 200])
    first = member.raft.ready()
    member.storage.append(None, first.entries)
    member.raft.advance(first)
    handed_out = member.raft.ready()
    assert [len(entry.data) for entry in handed_out.committed] == [200]
    member.raft.advance(handed_out)

    member.raft.propose([b"y"])
    second = member.raft.ready()
    member.storage.append(None, second.entries)
    member.raft.advance(second)
    waiting = member.raft.ready()
    assert waiting.committed == []
    member.raft.advance(waiting)

    member.raft.note_applied(handed_out.committed[-1].index)
    assert [entry.data for entry in member.raft.ready().committed] == [b"y"]


def test_dead_member_costs_no_snapshot() -> None:
    group = lagging()
    group["a"].raft.propose([b"more"])
    for _ in range(50):
        group["b"].raft.tick()
        group["a"].raft.tick()
        group.settle()

    group["a"].storage.forget(group["a"].raft.status().commit)
    group["a"].raft.propose([b"and more"])
    group.settle()

    assert not group["a"].is_asked_for_snapshot


def test_member_that_answers_is_called_active_right_after_each_quorum_check() -> None:
    group = make_group(3)
    leader = group.elect("a")
    group.tick(2)

    for _ in range(3 * leader.config.election_ticks):
        group.tick()
        leader.raft.tick()  # the answers to this one are still on their way
        assert leader.raft.status().progress["b"].active
        group.settle()


def test_member_that_leaves_with_a_full_window_behind_the_log_does_not_stop_the_leader() -> None:
    group = make_group(3, inflight_messages_max=1)
    leader = group.elect("a")
    group.settle()
    group.cut = {"c"}
    leader.raft.propose([b"fills the window of c"])
    group.settle()
    leader.raft.propose_membership(Members(("a", "b")), b"")
    begun = leader.begin()
    leader.storage.forget(leader.raft.status().commit)

    for message in begun + leader.finish():
        if message.target == "b":
            group["b"].raft.step(message)
    group.settle()

    assert set(leader.raft.status().progress) == {"a", "b"}
