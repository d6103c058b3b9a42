"""Elections: pre-vote, votes, stickiness to a live leader, check-quorum, transfer.

Sources: dissertation 3.4 and 3.6.1 (elections, up-to-date logs), 4.2.3 (disruptive servers: a vote is not
answered while a leader is live), 6.2 (a leader without a majority steps down), 9.6 (pre-vote), 3.10
(leadership transfer).
"""

from coordinator.raft import replication
from coordinator.raft.messages import Message, MessageKind
from coordinator.raft.state import RaftRole, State


def tick_waiting(state: State, ticks: int) -> None:
    """Count ticks of a member that does not lead; start a pre-vote after too long without a leader.

    A reluctant member waits until all less reluctant ones have had their turn: all their timeouts are
    shorter.
    """
    state.election_elapsed += ticks
    patience = state.config.election_ticks * state.reluctance
    if state.election_elapsed >= state.election_timeout + patience and state.may_stand:
        campaign(state)


def check_quorum(state: State) -> None:
    """Check once per election timeout: a leader without a majority steps down, and a transfer ends."""
    active = {member: int(progress.active) for member, progress in state.progress.items()}
    active[state.own_id] = 1
    for progress in state.progress.values():
        progress.was_active, progress.active = progress.active, False
    state.election_elapsed = 0
    state.transfer_target = ""
    if state.membership.reached_by_majority(active) == 0:
        state.become_follower(state.term, "")


def campaign(state: State) -> None:
    """Ask whether an election could be won, without disturbing any member: neither term nor vote changes."""
    assert not state.is_leader, "a leader campaigns"
    assert state.may_stand, "a member without a vote campaigns"
    state.enter(state.term, RaftRole.PRE_CANDIDATE, "")
    state.votes[state.own_id] = True
    state.send_now.extend(
        _vote_request(state, MessageKind.PRE_VOTE, peer, state.term + 1, transfer=False)
        for peer in state.membership.voting_peers
    )
    _count_pre_votes(state)


def start_vote(state: State, *, transfer: bool) -> None:
    """Start an election in a new term. The requests, and our own vote, wait for the sync of term and vote.

    If a request were sent before, a crash could lose the end of the log that it names, and replies could
    elect us in the same term with a shorter log.
    """
    state.enter(state.term + 1, RaftRole.CANDIDATE, "")
    state.vote = state.own_id
    state.send_after_sync.extend(
        _vote_request(state, MessageKind.VOTE, peer, state.term, transfer=transfer)
        for peer in state.membership.voting_peers
    )


def _vote_request(state: State, kind: MessageKind, peer: str, term: int, *, transfer: bool) -> Message:
    log = state.log
    return Message(
        kind, state.own_id, peer, term, log_index=log.last_index, log_term=log.last_term, transfer=transfer
    )


def has_live_leader(state: State) -> bool:
    """Return True after news of a leader within the shortest election timeout: then no other gets a vote."""
    if state.is_leader:
        return True  # check-quorum ensures it
    return bool(state.leader) and state.election_elapsed < state.config.election_ticks


def on_pre_vote(state: State, message: Message) -> None:
    """Grant a pre-vote if we would vote for this log in that term.

    It is no promise, so the answer need not wait for a sync.
    """
    grants = message.term > state.term and state.log.is_up_to_date(message.log_index, message.log_term)
    grants = grants and not state.is_recovering
    term = message.term if grants else state.term
    reply = Message(MessageKind.PRE_VOTE_REPLY, state.own_id, message.source, term, reject=not grants)
    state.send_now.append(reply)


def on_vote(state: State, message: Message) -> None:
    """Vote once per term, for the first request with a log at least as good as ours.

    The answer waits for the sync of the vote. A learner answers too: an entry that it lacks may have promoted
    it, and the candidate knows whose vote counts. A recovering member grants none: its log may lack
    acknowledged entries.
    """
    assert message.term == state.term, "terms were not aligned"
    may_vote = state.vote == message.source or (not state.vote and not state.leader)
    grants = may_vote and state.log.is_up_to_date(message.log_index, message.log_term)
    grants = grants and not state.is_recovering
    if grants:
        state.vote = message.source
        state.election_elapsed = 0
    reply = Message(MessageKind.VOTE_REPLY, state.own_id, message.source, state.term, reject=not grants)
    state.send_after_sync.append(reply)


def on_pre_vote_reply(state: State, message: Message) -> None:
    """Count an answer to our pre-vote; one to an older pre-vote is ignored."""
    asked_term = state.term if message.reject else state.term + 1
    if state.role is RaftRole.PRE_CANDIDATE and message.term == asked_term:
        state.votes.setdefault(message.source, not message.reject)
        _count_pre_votes(state)


def _count_pre_votes(state: State) -> None:
    outcome = state.membership.election_outcome(state.votes)
    if outcome is True:
        start_vote(state, transfer=False)
    elif outcome is False:
        state.become_follower(state.term, "")


def on_vote_reply(state: State, message: Message) -> None:
    """Count an answer to our candidacy in this term."""
    count_vote(state, message.source, granted=not message.reject)


def count_vote(state: State, voter: str, *, granted: bool) -> None:
    """Count one vote of the present term; become leader with a majority, follower without a chance."""
    if state.role is not RaftRole.CANDIDATE:
        return
    state.votes.setdefault(voter, granted)
    outcome = state.membership.election_outcome(state.votes)
    if outcome is True:
        replication.become_leader(state)
    elif outcome is False:
        state.become_follower(state.term, "")


def on_timeout_now(state: State, message: Message) -> None:
    """Start an election at once, without pre-vote, as our leader hands over to us (dissertation, 3.10)."""
    if state.role is RaftRole.FOLLOWER and message.source == state.leader and state.may_stand:
        start_vote(state, transfer=True)
