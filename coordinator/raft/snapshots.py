"""Snapshots at a follower: offered, fetched, restored. Apart from `replication` of entries.

Sources: dissertation 5.1 to 5.3. Unlike its InstallSnapshot, the message is an offer without the state. The
follower's driver fetches the bytes from the leader, at any speed and with interruptions, and hands the
finished snapshot to `restore`.
"""

from coordinator.raft import replication
from coordinator.raft.membership import is_group
from coordinator.raft.messages import Message, SnapshotMeta, SnapshotOffer
from coordinator.raft.state import RaftRole, State


def note_taken(state: State, meta: SnapshotMeta) -> None:
    """Note that the driver has made a snapshot: it is offered to the members that wait for one."""
    state.snapshot = meta
    if not state.is_leader:
        return
    state.flush_due = True
    for peer in replication.followers(state):
        progress = state.progress[peer]
        if progress.is_without_offer:
            progress.offer_due = progress.is_live


def is_well_formed_offer(message: Message) -> bool:
    """Return True if an offer names a possible entry and group."""
    members = message.members
    return (
        members is not None
        and is_group(members)
        and 0 < message.log_term <= message.term
        and message.log_index > 0
    )


def on_snapshot(state: State, message: Message) -> None:
    """Handle a leader's offer of a snapshot.

    Acknowledge a state that we have already, otherwise let the driver fetch it.
    """
    assert message.members is not None, "a well-formed offer names the members"
    log = state.log
    state.follow(message.source)
    replication.require_agreement(log, message)
    if message.log_index <= log.commit:
        replication.acknowledge(state, message.source, log.commit)
    elif log.matches(message.log_index, message.log_term):
        log.commit_to(message.log_index)
        replication.acknowledge(state, message.source, message.log_index)
    else:
        meta = SnapshotMeta(message.log_index, message.log_term, message.members)
        state.offer = SnapshotOffer(message.source, meta)


def restore(state: State, meta: SnapshotMeta) -> bool:
    """Replace the log by a fetched snapshot. Return False if it is not needed, or this is no follower.

    A log that holds the snapshot's last entry is kept: later entries may be committed, and acknowledged by
    us.
    """
    log = state.log
    if state.role is not RaftRole.FOLLOWER or meta.index <= log.commit:
        return False
    if log.matches(meta.index, meta.term):
        log.commit_to(meta.index)
        return False
    if meta.term > state.term:
        state.become_follower(meta.term, "")
    log.restore(meta)
    if state.leader:
        replication.acknowledge(state, state.leader, meta.index)
    return True
