"""Elections: pre-vote, votes, stickiness to a live leader, check-quorum, transfer.

Sources: dissertation 3.4 and 3.6.1 (elections, up-to-date logs), 4.2.3 (disruptive servers: a vote is not
answered while a leader is live), 6.2 (a leader without a majority steps down), 9.6 (pre-vote), 3.10
(leadership transfer).
"""

from coordinator.raft import replication
from coordinator.raft.messages import Message, MessageKind
from coordinator.raft.state import RaftRole, State


def tick_waiting(state: State, ticks: int) -> None:
    """Ticks of a member that does not lead: too long without a leader starts a pre-vote.

    A reluctant one waits until all that are less so have had their turn: any of their timeouts is shorter.
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
    """Asks whether an election could be won, without disturbing anyone: neither term nor vote changes."""
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
    """Stands for election in a new term. The requests, and our own vote, wait for the sync of term and vote.

    Were a request to leave before, a crash could forget the end of the log that it names, and answers to it
    could elect us in the same term with a shorter log.
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
    """True if a leader was heard of within the shortest election timeout: then nobody else gets a vote."""
    if state.is_leader:
        return True  # check-quorum vouches for it
    return bool(state.leader) and state.election_elapsed < state.config.election_ticks


def on_pre_vote(state: State, message: Message) -> None:
    """Grants if we would vote for this log in that term.

    Nothing is promised, so the answer need not wait for a sync.
    """
    grants = message.term > state.term and state.log.is_up_to_date(message.log_index, message.log_term)
    grants = grants and not state.is_recovering
    term = message.term if grants else state.term
    reply = Message(MessageKind.PRE_VOTE_REPLY, state.own_id, message.source, term, reject=not grants)
    state.send_now.append(reply)


def on_vote(state: State, message: Message) -> None:
    """Votes once per term, first come, for a log at least as good as ours.

    The answer waits for the sync of the vote. A learner answers too: it may have been promoted by an entry
    that it does not hold yet, and the candidate knows whose vote counts. One that recovers grants none: its
    log may lack what it acknowledged.
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
    """Counts an answer to our pre-vote; one to an older pre-vote is ignored."""
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
    """Counts an answer to our candidacy in this term."""
    count_vote(state, message.source, granted=not message.reject)


def count_vote(state: State, voter: str, *, granted: bool) -> None:
    """Records one vote of the present term; a majority makes us leader, a hopeless count a follower."""
    if state.role is not RaftRole.CANDIDATE:
        return
    state.votes.setdefault(voter, granted)
    outcome = state.membership.election_outcome(state.votes)
    if outcome is True:
        replication.become_leader(state)
    elif outcome is False:
        state.become_follower(state.term, "")


def on_timeout_now(state: State, message: Message) -> None:
    """Our leader hands over to us: elect at once, without pre-vote (dissertation, 3.10)."""
    if state.role is RaftRole.FOLLOWER and message.source == state.leader and state.may_stand:
        start_vote(state, transfer=True)
