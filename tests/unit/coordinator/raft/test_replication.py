"""The log between members as transcripts: what is appended, refused, acknowledged and committed."""

import pytest

from coordinator.raft.core import MESSAGES_WAITING_MAX, ProposalRefused
from coordinator.raft.log_view import LogView
from coordinator.raft.membership import MembershipHistory
from coordinator.raft.messages import (
    Entry,
    EntryKind,
    HardState,
    Members,
    Message,
    MessageKind,
)
from coordinator.raft.progress import ProgressState
from tests.sim.group import Group, Member, kinds, make_group, make_member, nothing
from tests.sim.memory_storage import MemoryStorage

ABC = ("a", "b", "c")


def entry(index: int, term: int, data: bytes = b"") -> Entry:
    return Entry(index, term, EntryKind.COMMAND, data or f"{index}@{term}".encode())


def append(
    follower: Member, previous: tuple[int, int], *entries: Entry, term: int = 9, commit: int = 0
) -> Message:
    """The follower's answer to an append of leader b."""
    message = Message(
        MessageKind.APPEND,
        "b",
        "a",
        term,
        log_index=previous[0],
        log_term=previous[1],
        commit=commit,
        entries=entries,
    )
    follower.raft.step(message)
    return follower.turn()[-1]


def terms(member: Member) -> list[int]:
    return [term for term, _ in member.log()]


def test_proposal_reaches_every_member_in_order() -> None:
    group = make_group(3)
    group.elect("a")

    assert group["a"].raft.propose([b"x", b"y"]) == (2, 1)
    group.tick()

    for member in group.members.values():
        assert [each.data for each in member.applied] == [b"", b"x", b"y"]


def test_commit_index_alone_is_not_worth_a_message() -> None:
    group = make_group(3)
    group.elect("a")
    group["a"].raft.propose([b"x"])

    sent = group.settle()

    appends = [message for message in sent if message.kind is MessageKind.APPEND]
    assert all(message.entries for message in appends)
    assert group["a"].applied[-1].data == b"x"


def test_leader_sends_before_its_own_sync_and_counts_itself_only_after() -> None:
    group = make_group(3)
    leader = group.elect("a")
    leader.raft.propose([b"x"])

    sent = leader.begin()
    status_before_sync = leader.raft.status()
    leader.raft.step(Message(MessageKind.APPEND_REPLY, "b", "a", 1, log_index=2))
    committed_before_sync = leader.raft.status().commit
    leader.finish()

    assert kinds(sent) == [MessageKind.APPEND, MessageKind.APPEND]
    assert status_before_sync.progress["a"].match == 1
    assert committed_before_sync == 1, "one follower and an unsynced leader are no majority"
    assert leader.raft.status().commit == 2


def test_followers_alone_commit_while_the_leaders_disk_is_slow() -> None:
    group = make_group(3)
    leader = group.elect("a")
    leader.raft.propose([b"x"])
    leader.begin()

    for follower in "bc":
        leader.raft.step(Message(MessageKind.APPEND_REPLY, follower, "a", 1, log_index=2))

    assert leader.raft.status().commit == 2
    leader.finish()
    leader.turn()
    assert [each.index for each in leader.applied] == [1, 2]


def test_acknowledgement_leaves_only_after_the_sync() -> None:
    follower = make_member("a", ABC)
    follower.raft.step(Message(MessageKind.APPEND, "b", "a", 1, entries=(entry(1, 1),)))

    ready = follower.raft.ready()

    assert ready.must_sync
    assert ready.send_now == []
    assert kinds(ready.send_after_sync) == [MessageKind.APPEND_REPLY]
    assert ready.entries == [entry(1, 1)]


def test_entries_are_synced_even_in_a_known_term() -> None:
    follower = make_member("a", ABC, (1,))
    append(follower, (1, 1), term=1)
    follower.raft.step(
        Message(MessageKind.APPEND, "b", "a", 1, log_index=1, log_term=1, entries=(entry(2, 1),))
    )

    ready = follower.raft.ready()

    assert ready.entries
    assert ready.must_sync


def test_news_of_a_commit_alone_is_not_written() -> None:
    follower = make_member("a", ABC, (1,))
    append(follower, (1, 1), term=1)
    follower.raft.step(Message(MessageKind.HEARTBEAT, "b", "a", 1, commit=1))

    ready = follower.raft.ready()

    assert ready.committed == [entry(1, 1)]
    assert ready.hard_state is None
    assert not ready.must_sync


def test_commit_index_travels_to_the_disk_with_the_next_entries() -> None:
    follower = make_member("a", ABC, (1,))
    append(follower, (1, 1), term=1, commit=1)
    follower.raft.step(
        Message(MessageKind.APPEND, "b", "a", 1, log_index=1, log_term=1, entries=(entry(2, 1),))
    )

    assert follower.raft.ready().hard_state == HardState(1, "", 1)


def test_messages_that_wait_for_a_hung_disk_are_bounded() -> None:
    follower = make_member("a", ABC, (1,))
    for _ in range(MESSAGES_WAITING_MAX + 10):
        follower.raft.step(Message(MessageKind.HEARTBEAT, "b", "a", 1))

    assert len(follower.begin()) == MESSAGES_WAITING_MAX + 1


def test_hard_state_of_a_batch_never_counts_on_its_entries() -> None:
    follower = make_member("a", ABC)
    follower.raft.step(Message(MessageKind.APPEND, "b", "a", 1, commit=1, entries=(entry(1, 1),)))

    ready = follower.raft.ready()

    assert ready.hard_state == HardState(1, "", 0), "a torn batch would leave a commit index beyond the log"
    assert [each.index for each in ready.committed] == [1]


def test_repeated_old_append_does_not_truncate() -> None:
    follower = make_member("a", ABC, (1, 1, 1, 1))

    reply = append(follower, (1, 1), entry(2, 1), term=1)

    assert terms(follower) == [1, 1, 1, 1]
    assert (reply.reject, reply.log_index) == (False, 2), "it vouches for no more than the append showed"


def test_append_below_the_commit_index_changes_nothing() -> None:
    follower = make_member("a", ABC, (1, 1, 1), commit=3)

    reply = append(follower, (1, 1), entry(2, 9, b"forged"))

    assert terms(follower) == [1, 1, 1]
    assert (reply.reject, reply.log_index) == (False, 3)


def test_conflict_truncates_from_its_first_entry_only() -> None:
    follower = make_member("a", ABC, (1, 1, 2, 2))

    reply = append(follower, (1, 1), entry(2, 1), entry(3, 3))

    assert terms(follower) == [1, 1, 3]
    assert (reply.reject, reply.log_index) == (False, 3)


def test_conflict_with_a_committed_entry_stops_the_process() -> None:
    storage = MemoryStorage([entry(1, 1), entry(2, 1)])
    log = LogView(storage, commit=2, applied=0, memberships=MembershipHistory("a", Members(ABC)))

    with pytest.raises(AssertionError, match="conflict at 2, at or below the commit index 2"):
        log.merge(1, [entry(2, 9)])


@pytest.mark.parametrize(
    ("previous", "hint"),
    [((7, 4), (4, 2)), ((4, 4), (4, 2)), ((3, 1), (2, 1)), ((4, 1), (2, 1))],
    ids=["beyond the end", "same index, later term", "older term", "older term, further on"],
)
def test_append_that_does_not_meet_the_log_is_refused_with_a_hint(
    previous: tuple[int, int], hint: tuple[int, int]
) -> None:
    follower = make_member("a", ABC, (1, 1, 2, 2))

    reply = append(follower, previous, entry(previous[0] + 1, 4))

    assert reply.reject
    assert reply.log_index == previous[0]
    assert (reply.hint_index, reply.hint_term) == hint
    assert terms(follower) == [1, 1, 2, 2]


def test_leader_finds_where_logs_meet_in_one_step_per_term() -> None:
    leader_terms = (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)
    follower_terms = (1, 1, 1, 4, 4) + (4,) * 200
    group = Group(
        make_member("a", ABC, leader_terms), make_member("b", ABC, follower_terms), make_member("c", ABC)
    )
    group.cut = {"b"}
    group.elect("a")
    group.cut = set()

    sent = group.tick(2)

    refusals = [m for m in sent if m.kind is MessageKind.APPEND_REPLY and m.reject and m.source == "b"]
    assert len(refusals) <= 2
    assert group["b"].log() == group["a"].log()


@pytest.mark.parametrize(
    ("leader_terms", "follower_terms"),
    [
        ((1, 1, 1, 4, 4, 5, 5, 6, 6), ()),
        ((1, 1, 1, 4, 4, 5, 5, 6, 6), (1, 1, 1, 4)),
        ((1, 1, 1, 4, 4, 5, 5, 6, 6), (1, 1, 1, 4, 4, 4, 4)),
        ((1, 1, 1, 4, 4, 5, 5, 6, 6), (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3)),
    ],
    ids=["empty", "missing a tail", "with a foreign tail", "two foreign terms"],
)
def test_follower_log_is_brought_to_the_leaders(
    leader_terms: tuple[int, ...], follower_terms: tuple[int, ...]
) -> None:
    # Figure 3.6 of the dissertation.
    group = Group(
        make_member("a", ABC, leader_terms), make_member("b", ABC, follower_terms), make_member("c", ABC)
    )

    group.elect("a")

    assert group["b"].log() == group["a"].log() == group["c"].log()


def test_entry_of_an_old_term_is_not_committed_by_counting() -> None:
    # Figure 3.7 of the dissertation (figure 8 of the paper): the entry of term 2 is on a majority, and may
    # yet be lost.
    names = ("a", "b", "c", "d", "e")
    group = Group(
        make_member("a", names, (1, 2), term=3, commit=1, append_bytes_max=1),
        make_member("b", names, (1, 2), term=3, commit=1),
        make_member("c", names, (1,), term=3, commit=1),
        make_member("d", names, (1,), term=3, commit=1),
        make_member("e", names, (1, 3), term=3, commit=1),
    )
    group.cut = {"d", "e"}

    def is_acceptable_no_op(message: Message) -> bool:
        return any(each.term == 4 for each in message.entries) and len(terms(group[message.target])) == 2

    group.dropped = is_acceptable_no_op
    group["a"].raft.campaign()
    group.tick(5)
    leader = group["a"].raft
    leader.step(Message(MessageKind.APPEND_REPLY, "b", "a", 4, log_index=2))

    assert [terms(group[name]) for name in "abc"] == [[1, 2, 4], [1, 2], [1, 2]]
    assert [leader.status().progress[name].match for name in "bc"] == [2, 2]
    assert leader.status().commit == 1
    group.dropped = nothing
    group.tick(3)
    assert leader.status().commit == 3, "with an entry of its own term the leader commits both"


def test_overwritten_entry_of_figure_8_was_never_applied() -> None:
    names = ("a", "b", "c", "d", "e")
    group = Group(
        make_member("a", names, (1, 2), term=4, commit=1),
        make_member("b", names, (1, 2), term=4, commit=1),
        make_member("c", names, (1, 2), term=4, commit=1),
        make_member("d", names, (1,), term=4, commit=1),
        make_member("e", names, (1, 3), term=4, commit=1),
    )

    group.elect("e")

    assert {tuple(terms(member)) for member in group.members.values()} == {(1, 3, 5)}
    assert all(each.term != 2 for member in group.members.values() for each in member.applied)


def test_commit_index_given_to_a_follower_is_bounded_by_what_it_was_shown() -> None:
    follower = make_member("a", ABC, (1, 1, 1, 1))

    append(follower, (1, 1), entry(2, 1), term=2, commit=4)

    assert follower.raft.status().commit == 2, "entries 3 and 4 may differ from the leader's"


def test_heartbeat_never_carries_a_commit_index_beyond_the_match() -> None:
    group = make_group(3)
    leader = group.elect("a")
    group.cut = {"c"}
    leader.raft.propose([b"x", b"y"])
    group.settle()

    beats = [m for m in group.tick() if m.kind is MessageKind.HEARTBEAT]

    assert {m.target: m.commit for m in beats} == {"b": 3, "c": 1}


def test_acknowledgement_beyond_the_leaders_log_is_dropped_and_counted() -> None:
    group = make_group(3)
    leader = group.elect("a").raft

    leader.step(Message(MessageKind.APPEND_REPLY, "b", "a", 1, log_index=99))

    assert leader.status().messages_refused == 1
    assert leader.status().progress["b"].match == 1


@pytest.mark.parametrize(
    "entries",
    [(entry(3, 1),), (entry(2, 1), entry(4, 1)), (entry(2, 2), entry(3, 1)), (entry(2, 99),), (entry(1, 1),)],
    ids=["gap", "gap inside", "term falls", "term ahead of the message", "before the previous index"],
)
def test_entries_that_do_not_follow_their_append_are_dropped_and_counted(entries: tuple[Entry, ...]) -> None:
    # raft-rs acknowledged such an append, and with it entries that it did not have.
    follower = make_member("a", ABC, (1,))
    follower.raft.step(Message(MessageKind.APPEND, "b", "a", 9, log_index=1, log_term=1, entries=entries))

    assert follower.turn() == []
    assert follower.raft.status().messages_refused == 1
    assert terms(follower) == [1]


def test_every_append_sent_carries_entries_that_follow_its_previous_index() -> None:
    group = make_group(3, append_bytes_max=100, inflight_messages_max=3)
    leader = group.elect("a")
    lost = iter([False, True, True, False, True] * 100)
    group.dropped = lambda message: message.kind is MessageKind.APPEND and next(lost)
    leader.raft.propose([b"x" * 20] * 40)

    sent = group.settle() + group.tick(30)

    for message in sent:
        for position, each in enumerate(message.entries, message.log_index + 1):
            assert each.index == position
    assert group["b"].log() == leader.log()


def test_in_flight_messages_and_bytes_are_bounded() -> None:
    group = make_group(3, append_bytes_max=100, inflight_messages_max=4)
    leader = group.elect("a")
    group.cut = {"b", "c"}
    for _ in range(50):
        leader.raft.propose([b"x" * 60])

    leader.turn()
    by_messages = leader.raft.status().progress["b"]
    group = make_group(3, append_bytes_max=100, inflight_bytes_max=300)
    leader = group.elect("a")
    leader.raft.propose([b"x" * 60] * 50)
    leader.turn()
    by_bytes = leader.raft.status().progress["b"]

    assert by_messages.inflight_messages == 4
    assert 300 <= by_bytes.inflight_bytes < 300 + 100


def test_lost_appends_are_sent_again_once_the_follower_answers_heartbeats() -> None:
    group = make_group(3, inflight_messages_max=2)
    leader = group.elect("a")
    group.cut = {"b"}
    for _ in range(5):
        leader.raft.propose([b"x"])
        group.settle()
    group.cut = set()

    group.tick(3)

    assert group["b"].log() == leader.log()
    assert leader.raft.status().progress["b"].state is ProgressState.REPLICATE


def test_silent_follower_is_sent_no_entries_over_and_over() -> None:
    group = make_group(3)
    leader = group.elect("a")
    group.cut = {"c"}
    leader.raft.propose([b"x"])
    group.settle()

    sent = group.tick(30)

    assert [m for m in sent if m.target == "c" and m.entries] == []


def test_entry_larger_than_an_append_travels_alone() -> None:
    group = make_group(3, append_bytes_max=50)
    group.elect("a").raft.propose([b"s", b"L" * 500, b"s"])

    sent = group.settle()

    assert [len(m.entries) for m in sent if m.target == "b" and m.entries] == [1, 1, 1]
    assert group["b"].log() == group["a"].log()


@pytest.mark.parametrize(
    ("datas", "reason"),
    [([b"x" * 101], "an entry of 101 bytes"), ([b"x" * 90] * 3, "wait for a majority"), ([], "0 entries")],
)
def test_proposal_beyond_a_bound_is_refused_whole(datas: list[bytes], reason: str) -> None:
    group = make_group(3, entry_bytes_max=100, uncommitted_bytes_max=300)
    leader = group.elect("a")

    with pytest.raises(ProposalRefused, match=reason):
        leader.raft.propose(datas)

    assert leader.raft.status().last_index == 1


def test_bound_on_uncommitted_bytes_is_given_back_by_commits() -> None:
    group = make_group(3, entry_bytes_max=100, uncommitted_bytes_max=300)
    leader = group.elect("a")

    for _ in range(20):
        leader.raft.propose([b"x" * 90] * 2)
        group.settle()

    assert leader.raft.status().commit == 41


def test_entries_overwritten_while_being_written_are_truncated_by_the_next_batch() -> None:
    follower = make_member("a", ABC)
    follower.raft.step(
        Message(MessageKind.APPEND, "b", "a", 1, entries=(entry(1, 1), entry(2, 1), entry(3, 1)))
    )
    follower.begin()
    follower.raft.step(
        Message(MessageKind.APPEND, "c", "a", 2, log_index=1, log_term=1, entries=(entry(2, 2),))
    )

    follower.finish()
    ready = follower.raft.ready()

    assert (ready.truncate_from, ready.entries) == (2, [entry(2, 2)])
    assert follower.log()[2] == (1, b"3@1")
    follower.storage.append(ready.truncate_from, ready.entries)
    follower.raft.advance(ready)
    assert terms(follower) == [1, 2]


def test_restarted_member_applies_each_entry_once_from_its_applied_index() -> None:
    member = make_member("a", ("a",), (1, 1, 1), commit=1)
    member.raft.campaign()
    member.turn()

    assert [each.index for each in member.applied] == [1, 2, 3, 4]


def test_committed_entries_come_in_bounded_portions() -> None:
    member = make_member("a", ("a",), (1,) * 10, committed_bytes_max=100)
    member.raft.campaign()
    portions = []

    while member.raft.has_ready():
        ready = member.raft.ready()
        portions.append(len(ready.committed))
        member.storage.append(ready.truncate_from, ready.entries)
        member.raft.advance(ready)

    assert sum(portions) == 11
    assert max(portions) <= 3
