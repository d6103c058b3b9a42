"""Snapshots on the side of the leader: one is offered to a follower that needs what the log no longer holds.

Sources: dissertation 5.1 to 5.3; what differs from them is told in `coordinator.raft.snapshots`.
"""

from coordinator.raft.messages import Message, MessageKind
from coordinator.raft.progress import Progress
from coordinator.raft.state import State


def offer_to(state: State, peer: str, progress: Progress) -> None:
    """Offers the newest snapshot that this log can follow up, or asks the driver for one."""
    if progress.next < state.log.first_index:
        progress.needs_snapshot()
    if not progress.offer_due:
        return
    meta = state.snapshot
    if meta is None or meta.index < state.log.first_index - 1:
        progress.offer_due = False  # until the next sign of life, or until there is one
        state.take_snapshot = True
        return
    progress.offered(meta.index)
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
