"""ReadIndex as transcripts: what a read waits for, who answers it, and when it is refused."""

from coordinator.raft.messages import Entry, EntryKind, HardState, Message, MessageKind, ReadState
from tests.sim.group import Group, kinds, make_group, make_member, nothing

ABC = ("a", "b", "c")


def test_read_on_the_leader_waits_for_a_majority() -> None:
    group = make_group(3)
    leader = group.elect("a")
    leader.raft.read_index(b"r")

    beats = leader.turn()
    before = list(leader.read_states)
    leader.raft.step(Message(MessageKind.HEARTBEAT_REPLY, "b", "a", 1, round=beats[0].round))
    leader.turn()

    assert kinds(beats) == [MessageKind.HEARTBEAT, MessageKind.HEARTBEAT]
    assert before == []
    assert leader.read_states == [ReadState(b"r", 1)]


def test_read_on_the_leader_does_not_wait_for_its_own_disk() -> None:
    group = make_group(3)
    leader = group.elect("a")
    leader.raft.propose([b"x"])
    leader.begin()  # and its disk takes long

    leader.raft.read_index(b"r")
    beats = leader.raft.ready_without_disk().send_now
    leader.raft.step(Message(MessageKind.HEARTBEAT_REPLY, "b", "a", 1, round=beats[0].round))
    found = leader.raft.ready_without_disk()

    assert kinds(beats) == [MessageKind.HEARTBEAT, MessageKind.HEARTBEAT]
    assert found.read_states == [ReadState(b"r", 1)]
    assert (found.entries, found.send_after_sync, found.must_sync) == ([], [], False)
    leader.finish()
    leader.turn()
    assert leader.read_states == [], "it is answered once"


def test_follower_whose_disk_takes_long_confirms_reads_and_promises_nothing() -> None:
    group = make_group(3)
    group.elect("a")
    follower = group["b"]
    entry = Entry(2, 1, EntryKind.COMMAND, b"x")
    follower.raft.step(Message(MessageKind.APPEND, "a", "b", 1, log_index=1, log_term=1, entries=(entry,)))
    assert follower.begin() == []
    follower.raft.step(Message(MessageKind.HEARTBEAT, "a", "b", 1, round=7))
    again = Message(MessageKind.APPEND, "a", "b", 1, log_index=2, log_term=1)
    follower.raft.step(again)

    assert kinds(follower.raft.ready_without_disk().send_now) == [MessageKind.HEARTBEAT_REPLY]
    assert kinds(follower.finish()) == [MessageKind.APPEND_REPLY]


def test_answer_to_an_earlier_round_does_not_confirm_a_read() -> None:
    group = make_group(3)
    leader = group.elect("a")
    leader.raft.tick()
    old = leader.turn()[0]

    leader.raft.read_index(b"r")
    leader.turn()
    leader.raft.step(Message(MessageKind.HEARTBEAT_REPLY, "b", "a", 1, round=old.round))
    leader.turn()

    assert leader.read_states == []


def test_stale_leader_serves_no_read() -> None:
    group = make_group(3)
    stale = group.elect("a")
    group.cut = {"a"}
    group.elect("b").raft.propose([b"new"])
    group.settle()
    assert stale.raft.leader == "a", "it does not know yet"

    stale.raft.read_index(b"r")
    stale.turn()
    group.cut = set()
    group.tick(2)

    assert stale.read_states == []
    assert stale.reads_refused == [b"r"]


def test_leader_without_a_majority_refuses_its_reads_when_it_steps_down() -> None:
    group = make_group(3)
    leader = group.elect("a")
    group.cut = {"b", "c"}
    leader.raft.read_index(b"r")

    group.tick(2 * leader.config.election_ticks)

    assert leader.reads_refused == [b"r"]


def test_new_leader_serves_no_read_before_it_commits_in_its_own_term() -> None:
    # It may hold entries that its predecessor committed and acknowledged, and not know it yet (dissertation,
    # 6.4).
    group = Group(*(make_member(name, ABC, (1, 1), commit=1) for name in ABC))
    group.dropped = lambda message: message.kind is MessageKind.APPEND
    leader = group.elect("a")
    leader.raft.read_index(b"r")
    group.settle()
    before = list(leader.read_states)

    group.dropped = nothing
    group.tick(2)

    assert before == []
    assert leader.read_states == [ReadState(b"r", 3)]


def test_reads_of_one_moment_share_one_round() -> None:
    group = make_group(3)
    leader = group.elect("a")
    contexts = [str(number).encode() for number in range(100)]
    for context in contexts:
        leader.raft.read_index(context)

    sent = group.settle()

    assert kinds(sent).count(MessageKind.HEARTBEAT) == 2
    assert [state.context for state in leader.read_states] == contexts


def test_reads_on_a_follower_are_asked_of_the_leader_in_one_message() -> None:
    group = make_group(3)
    group.elect("a").raft.propose([b"x"])
    group.settle()
    for context in (b"1", b"2", b"3"):
        group["b"].raft.read_index(context)

    sent = group.settle()

    assert kinds(sent).count(MessageKind.READ_INDEX) == 1
    assert group["b"].read_states == [ReadState(context, 2) for context in (b"1", b"2", b"3")]


def test_followers_read_learns_the_commit_index_that_it_waits_for() -> None:
    group = make_group(3)
    group.elect("a")
    group["a"].raft.propose([b"x"])
    group.settle()
    assert group["b"].raft.status().commit < 2

    group["b"].raft.read_index(b"r")
    group.settle()

    assert group["b"].read_states == [ReadState(b"r", 2)]
    assert group["b"].applied[-1].data == b"x"


def test_followers_read_learns_the_commit_index_as_soon_as_it_has_the_entries() -> None:
    group = make_group(3)
    leader = group.elect("a")
    leader.raft.propose([b"x"])
    group.dropped = lambda message: message.kind is MessageKind.APPEND_REPLY and message.source == "b"
    group.settle()
    group["b"].raft.read_index(b"r")
    group.settle()
    assert group["b"].raft.status().commit < 2, "the leader does not know that b has the entry"

    group.dropped = nothing
    leader.raft.step(Message(MessageKind.APPEND_REPLY, "b", "a", 1, log_index=2))
    group.settle()

    assert group["b"].applied[-1].data == b"x"


def test_read_without_a_leader_is_refused_at_once() -> None:
    group = make_group(3)

    group["a"].raft.read_index(b"r")
    group.settle()

    assert group["a"].reads_refused == [b"r"]


def test_read_whose_forward_was_lost_is_refused_after_an_election_timeout() -> None:
    group = make_group(3)
    group.elect("a")
    group.dropped = lambda message: message.kind is MessageKind.READ_INDEX
    group["b"].raft.read_index(b"r")
    group.settle()

    group.tick(group["b"].config.election_ticks - 1)
    before = list(group["b"].reads_refused)
    group.tick(1)

    assert before == []
    assert group["b"].reads_refused == [b"r"]


def test_answer_to_a_read_of_before_a_restart_answers_none_after_it() -> None:
    group = make_group(3)
    group.elect("a")
    replies: list[Message] = []

    def catch_reply(message: Message) -> bool:
        if message.kind is MessageKind.READ_INDEX_REPLY:
            replies.append(message)
        return message.kind is MessageKind.READ_INDEX_REPLY

    group.dropped = catch_reply
    group["b"].raft.read_index(b"before")
    group.settle()
    group["b"].restart()
    group.tick()
    group["b"].raft.read_index(b"after")
    group["b"].turn()

    group["b"].raft.step(replies[0])
    group["b"].turn()

    assert group["b"].read_states == []


def test_lost_round_is_repeated_by_the_next_heartbeat() -> None:
    group = make_group(3)
    leader = group.elect("a")
    group.cut = {"b", "c"}
    leader.raft.read_index(b"r")
    group.settle()
    group.cut = set()

    group.tick(1)

    assert leader.read_states == [ReadState(b"r", 1)]


def test_reads_beyond_the_bound_are_refused() -> None:
    group = make_group(3, reads_pending_max=2)
    leader = group.elect("a")
    for context in (b"1", b"2", b"3"):
        leader.raft.read_index(context)

    group.settle()

    assert leader.reads_refused == [b"3"]
    assert [state.context for state in leader.read_states] == [b"1", b"2"]


def test_change_of_leader_refuses_a_followers_open_reads() -> None:
    group = make_group(3)
    group.elect("a")
    group.cut = {"a"}
    group["b"].raft.read_index(b"r")
    group.settle()

    group.elect("c")

    assert group["b"].reads_refused == [b"r"]
    assert group["b"].hard_state != HardState()
