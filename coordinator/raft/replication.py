"""The log from the leader to the others: appends, acknowledgements, back-off, commit, heartbeats.

Sources: dissertation 3.5 (log replication and the consistency check), 3.6.2 (commit only entries of the own
term by counting), 10.2.1 (the leader's disk in parallel with the followers'), 10.2.2 (batching and
pipelining).
"""

from collections.abc import Sequence

from coordinator.raft.log_view import LogView
from coordinator.raft.membership import encode_membership, is_membership
from coordinator.raft.messages import (
    Entry,
    EntryKind,
    MembershipChange,
    Message,
    MessageKind,
    Reluctance,
    entry_size_bytes,
)
from coordinator.raft.progress import Progress, ProgressState
from coordinator.raft.state import RaftRole, State


class AcknowledgedLost(AssertionError):
    """The log of this member went back to an earlier time: Raft cannot continue with it."""


class CommittedContradicted(AssertionError):
    """A leader's log contradicts our committed entries: the members that elected it have lost entries."""


def become_leader(state: State) -> None:
    """Lead the term whose election was won, and append the no-op that lets older entries commit."""
    assert state.role is RaftRole.CANDIDATE, f"{state.role} becomes leader"
    state.enter(state.term, RaftRole.LEADER, state.own_id)
    everyone = (state.own_id, *state.membership.peers)
    state.progress = {member: Progress(state.log.last_index + 1) for member in everyone}
    state.progress[state.own_id].match = state.log.stable_last
    state.reads.last_round = 0
    append_own(state, (b"",), EntryKind.NOOP)


def append_own(state: State, datas: Sequence[bytes], kind: EntryKind) -> int:
    """Append a leader's entries, one per data, and return the index of the first."""
    first = state.log.last_index + 1
    entries = [Entry(first + position, state.term, kind, data) for position, data in enumerate(datas)]
    state.log.append(entries)
    size_bytes = sum(map(entry_size_bytes, entries))
    state.uncommitted.append((entries[-1].index, size_bytes))
    state.uncommitted_bytes += size_bytes
    state.flush_due = True
    return first


def tick_leader(state: State, ticks: int) -> bool:
    """Count ticks of the leader. Return True if heartbeats are due.

    Heartbeats prevent elections, report the commit index, and repeat lost rounds of reads and appends.
    """
    state.heartbeat_elapsed += ticks
    if state.heartbeat_elapsed < heartbeat_interval_ticks(state):
        return False
    state.heartbeat_elapsed = 0
    for peer in followers(state):
        state.progress[peer].heartbeat_sent()
    broadcast_heartbeat(state)
    return True


def heartbeat_interval_ticks(state: State) -> int:
    """Return the present interval of heartbeats."""
    log, config = state.log, state.config
    waits = bool(state.reads.rounds) or any(
        state.progress[peer].waits(log.last_index, log.commit, config) for peer in followers(state)
    )
    return config.heartbeat_ticks if waits else config.quiet_ticks


def followers(state: State) -> tuple[str, ...]:
    """Return the receivers of this leader's log: members, and those whose removal is not committed yet."""
    return tuple(member for member in state.progress if member != state.own_id)


def broadcast_heartbeat(state: State) -> None:
    """Send every peer a heartbeat of the latest round.

    Its commit index never exceeds the entries that the peer is known to have.
    """
    for peer in followers(state):
        progress = state.progress[peer]
        commit = min(state.log.commit, progress.match)
        progress.commit_sent = max(progress.commit_sent, commit)
        state.send_now.append(
            Message(
                MessageKind.HEARTBEAT,
                state.own_id,
                peer,
                state.term,
                commit=commit,
                round=state.reads.last_round,
            )
        )


def flush_appends(state: State) -> None:
    """Send each peer what flow control allows: entries, or an offer of a snapshot.

    A higher commit index alone causes no message: it is sent with the next entries or the next heartbeat,
    unless a read of that peer waits for it.
    """
    for peer in followers(state):
        progress = state.progress[peer]
        if progress.state is ProgressState.SNAPSHOT or progress.next < state.log.first_index:
            offer_to(state, peer, progress)
            continue
        while progress.next <= state.log.last_index and progress.may_send(state.config):
            _send_append(state, peer, progress, with_entries=True)
            if progress.state is ProgressState.PROBE:
                break
        if progress.owes_news or (progress.probe_due and not progress.probe_sent):
            _send_append(state, peer, progress, with_entries=False)


def _send_append(state: State, peer: str, progress: Progress, *, with_entries: bool) -> None:
    log = state.log
    previous = progress.next - 1
    assert progress.next >= log.first_index, f"{peer} needs index {progress.next}, which is compacted away"
    entries: list[Entry] = []
    if with_entries:
        entries = log.entries(progress.next, log.last_index + 1, state.config.append_bytes_max)
        # raft-rs once glued a resent run onto an append whose previous index lay elsewhere; the receiver
        # acknowledged it all.
        assert entries[0].index == previous + 1, f"append after {previous} carries entry {entries[0].index}"
        progress.note_sent(entries[-1].index, sum(map(entry_size_bytes, entries)))
    progress.commit_sent = log.commit
    progress.probe_due = False
    if progress.state is ProgressState.PROBE:
        progress.probe_sent = True
    state.send_now.append(
        Message(
            MessageKind.APPEND,
            state.own_id,
            peer,
            state.term,
            log_index=previous,
            log_term=log.term(previous),
            commit=log.commit,
            entries=tuple(entries),
        )
    )


def is_well_formed_append(message: Message) -> bool:
    """Return True if the entries of this append are valid.

    They follow the previous index one by one, their terms never decrease or exceed the message's, and
    membership changes can be decoded.
    """
    index, term = message.log_index, message.log_term
    for entry in message.entries:
        if entry.index != index + 1 or entry.term < term:
            return False
        if entry.kind is EntryKind.MEMBERSHIP and not is_membership(entry.data):
            return False
        index, term = entry.index, entry.term
    return term <= message.term


def on_append(state: State, message: Message) -> None:
    """Merge a leader's entries if the logs meet, otherwise report where they may.

    The answer waits for the sync.
    """
    log = state.log
    state.follow(message.source)
    require_agreement(log, message)
    if message.log_index < log.commit:
        # All up to our commit index equals the leader's log (leader completeness), so this append is an old
        # one.
        acknowledge(state, message.source, log.commit)
        return
    if not log.matches(message.log_index, message.log_term):
        _refuse_append(state, message, log)
        return
    log.merge(message.log_index, message.entries)
    matched_index = message.log_index + len(message.entries)
    log.commit_to(min(message.commit, matched_index))
    acknowledge(state, message.source, matched_index)


def require_agreement(log: LogView, message: Message) -> None:
    """Raise CommittedContradicted if this leader has another entry than a committed one of ours.

    A leader has every entry that was ever committed (leader completeness; dissertation, 3.6.4).
    """
    index = message.log_index
    if log.first_index - 1 <= index <= log.commit and log.term(index) != message.log_term:
        ours = log.term(index)
        raise CommittedContradicted(
            f"{message.source} has an entry of term {message.log_term} at {index}, ours is of term {ours}"
        )


def acknowledge(state: State, leader: str, matched_index: int) -> None:
    """Report to the leader up to where our logs match, once that is on this disk."""
    state.send_after_sync.append(
        Message(MessageKind.APPEND_REPLY, state.own_id, leader, state.term, log_index=matched_index)
    )


def _refuse_append(state: State, message: Message, log: LogView) -> None:
    hint_index = log.last_index_within_term(message.log_index, message.log_term)
    state.send_after_sync.append(
        Message(
            MessageKind.APPEND_REPLY,
            state.own_id,
            message.source,
            state.term,
            log_index=message.log_index,
            hint_index=hint_index,
            hint_term=log.term(hint_index),
            reject=True,
        )
    )


def on_append_reply(state: State, message: Message) -> None:
    """Update one follower's progress, go back by whole terms if the logs do not meet, and commit."""
    progress = state.progress.get(message.source)
    if progress is None:
        return  # a member that was removed
    progress.note_message()
    if message.reject:
        meeting = state.log.last_index_within_term(message.hint_index, message.hint_term)
        if progress.note_rejected(message.log_index, meeting + 1):
            state.flush_due = True
    elif message.log_index > state.log.last_index:
        state.messages_refused += 1  # it acknowledges entries that we never sent
    else:
        is_news = progress.note_acknowledged(message.log_index)
        state.flush_due = True
        if is_news:
            maybe_commit(state)
        _maybe_hand_over(state)


def maybe_commit(state: State) -> None:
    """Commit entries on a majority's disks, if the last is of the own term (dissertation, 3.6.2)."""
    matches = {member: progress.match for member, progress in state.progress.items()}
    index = state.membership.reached_by_majority(matches)
    if index <= state.log.commit or state.log.term(index) != state.term:
        return
    state.log.commit_to(index)
    state.flush_due = True
    while state.uncommitted and state.uncommitted[0][0] <= index:
        state.uncommitted_bytes -= state.uncommitted.popleft()[1]
    if state.log.memberships.latest_index <= index:
        _settle_membership(state)


def change_membership(state: State, change: MembershipChange) -> int:
    """Append a leader's membership change, in force at once (dissertation, 4.1). Return its index.

    Removed members still receive the log until the change is committed, so they learn of it.
    """
    index = append_own(state, (encode_membership(change),), EntryKind.MEMBERSHIP)
    for peer in state.membership.peers:
        if peer not in state.progress:
            state.progress[peer] = Progress(state.log.last_index + 1)
            state.progress[peer].probe_due = True
    if state.transfer_target not in state.membership.voters:
        state.transfer_target = ""
    return index


def _settle_membership(state: State) -> None:
    """Inform removed members once more, and forget them, as the membership in force is committed."""
    for peer in followers(state):
        if not state.membership.is_peer(peer):
            progress = state.progress[peer]
            if progress.state is ProgressState.REPLICATE and progress.next >= state.log.first_index:
                _send_append(state, peer, progress, with_entries=False)
            del state.progress[peer]
    if not state.membership.is_voter:
        # It led its own removal to the end without counting itself (dissertation, 4.2.2).
        state.become_follower(state.term, "")


def own_log_synced(state: State) -> None:
    """Count the leader's own entries, which are on its disk only now (dissertation, 10.2.1)."""
    progress = state.progress[state.own_id]
    if progress.match < state.log.stable_last:
        progress.match = state.log.stable_last
        maybe_commit(state)


def on_heartbeat(state: State, message: Message) -> None:
    """Handle the leader's heartbeat. The answer promises nothing about the disk, so it is sent at once."""
    state.follow(message.source)
    learn_commit(state, message)
    reluctance = Reluctance.RECOVERING if state.is_recovering else state.reluctance
    state.send_now.append(
        Message(
            MessageKind.HEARTBEAT_REPLY,
            state.own_id,
            message.source,
            state.term,
            round=message.round,
            reject=reluctance > Reluctance.WILLING,
            hint_index=reluctance,
        )
    )


def learn_commit(state: State, message: Message) -> None:
    """Note the leader's commit index, as far as it knows that our log matches."""
    if message.commit > state.log.last_index and state.is_recovering:
        # The lost promises are of its term too, which was unknown: only a later leader asks again for our
        # log.
        state.lost_term = state.term
        state.become_follower(state.term + 1, "")
        return
    if message.commit > state.log.last_index:
        raise AcknowledgedLost(f"{message.source} counts on entries that we never acknowledged")
    state.log.commit_to(message.commit)


def on_heartbeat_reply(state: State, message: Message) -> None:
    """Handle a follower's reply to a heartbeat: it is alive, and we led when it answered that round."""
    progress = state.progress.get(message.source)
    if progress is None:
        return
    progress.note_message()
    progress.reluctance = _reluctance_of(message)
    progress.acked_round = max(progress.acked_round, min(message.round, state.reads.last_round))
    progress.receive_heartbeat_reply()
    state.flush_due = True


def _reluctance_of(message: Message) -> Reluctance:
    if not message.reject:
        return Reluctance.WILLING
    is_known = Reluctance.WILLING < message.hint_index <= max(Reluctance)
    return Reluctance(message.hint_index) if is_known else Reluctance.NO_ROOM


def start_transfer(state: State, target: str) -> None:
    """Refuse proposals and hand over as soon as `target` has the whole log (dissertation, 3.10)."""
    state.transfer_target = target
    state.election_elapsed = 0  # the next quorum check ends an attempt that does not succeed
    state.flush_due = True
    _maybe_hand_over(state)


def _maybe_hand_over(state: State) -> None:
    target = state.transfer_target
    if target and state.progress[target].match == state.log.last_index:
        state.send_now.append(Message(MessageKind.TIMEOUT_NOW, state.own_id, target, state.term))


def offer_to(state: State, peer: str, progress: Progress) -> None:
    """Offer the newest snapshot that this log can follow up, to a follower behind the start of the log.

    If there is none, ask the driver for one. Sources: dissertation 5.1 to 5.3; `coordinator.raft.snapshots`
    says what differs from them.
    """
    if progress.next < state.log.first_index:
        progress.needs_snapshot()
    if not progress.offer_due:
        return
    meta = state.snapshot
    if meta is None or meta.index < state.log.first_index - 1:
        progress.offer_due = False  # until the member's next message, or until there is one
        state.take_snapshot = True
        return
    progress.note_offered(meta.index)
    state.send_now.append(
        Message(
            MessageKind.SNAPSHOT,
            state.own_id,
            peer,
            state.term,
            log_index=meta.index,
            log_term=meta.term,
            members=meta.members,
        )
    )
