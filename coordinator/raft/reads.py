"""Linearizable reads without log entries: ReadIndex, in rounds, also for followers (dissertation, 6.4).

A leader that has committed an entry of its own term notes its commit index, and serves the read once a
majority has answered a heartbeat sent after that. All reads that arrive during a round share the next one. A
follower sends the leader the number of a batch; the contexts themselves never leave the member that received
them.
"""

from coordinator.raft import replication
from coordinator.raft.messages import Message, MessageKind
from coordinator.raft.state import ForwardedReads, ReadRequest, ReadRound, State

ROUNDS_IN_FLIGHT_MAX = 2  # one in each direction; later reads share the next round
FORWARDED_BATCHES_MAX = 64
REQUESTS_MAX = 4096  # followers' batches that wait at the leader


def ask(state: State, context: bytes) -> None:
    """Accept a read, or refuse it if there is no leader to ask or too many wait."""
    reads = state.reads
    reads.pending += 1
    if not state.leader or reads.pending > state.config.reads_pending_max:
        reads.refuse((context,))
        return
    reads.waiting.append(context)
    state.flush_due = True


def flush(state: State) -> None:
    """Start a round, or forward a batch, with all waiting reads."""
    if state.is_leader:
        _start_round(state)
    elif state.reads.waiting:
        _forward(state)


def _start_round(state: State) -> None:
    reads = state.reads
    has_own_commit = state.log.term(state.log.commit) == state.term
    if (
        not (reads.waiting or reads.requests)
        or not has_own_commit
        or len(reads.rounds) >= ROUNDS_IN_FLIGHT_MAX
    ):
        return
    own = ReadRequest(state.own_id, contexts=tuple(reads.waiting))
    reads.last_round += 1
    reads.rounds.append(ReadRound(reads.last_round, state.log.commit, (own, *reads.requests)))
    reads.waiting.clear()
    reads.requests.clear()
    replication.broadcast_heartbeat(state)
    serve_confirmed(state)


def _forward(state: State) -> None:
    reads = state.reads
    contexts = tuple(reads.waiting)
    reads.waiting.clear()
    if len(reads.forwarded) >= FORWARDED_BATCHES_MAX:
        reads.refuse(contexts)
        return
    reads.next_batch += 1
    reads.forwarded[reads.next_batch] = ForwardedReads(contexts, ticks_left=state.config.election_ticks)
    state.send_now.append(
        Message(MessageKind.READ_INDEX, state.own_id, state.leader, state.term, round=reads.next_batch)
    )


def expire(state: State, ticks: int) -> None:
    """Refuse batches that the leader did not answer within an election timeout."""
    for number, batch in list(state.reads.forwarded.items()):
        batch.ticks_left -= ticks
        if batch.ticks_left <= 0:
            state.reads.refuse(batch.contexts)
            del state.reads.forwarded[number]


def on_read_index(state: State, message: Message) -> None:
    """Handle a follower's request. A member that does not lead says so at once."""
    if state.is_leader and len(state.reads.requests) < REQUESTS_MAX:
        state.reads.requests.append(ReadRequest(message.source, batch=message.round))
        state.flush_due = True
    else:
        _reply(state, message.source, message.round, index=0, reject=True)


def on_read_index_reply(state: State, message: Message) -> None:
    """Handle the leader's answer to one of our batches; an unknown number was handled before."""
    if message.source != state.leader:
        state.messages_refused += 1
        return
    batch = state.reads.forwarded.pop(message.round, None)
    if batch is None:
        return
    if message.reject:
        state.reads.refuse(batch.contexts)
    else:
        state.reads.answer(batch.contexts, message.log_index)
        replication.learn_commit(state, message)


def serve_confirmed(state: State) -> None:
    """Answer every round that a majority has confirmed: a later round confirms the earlier ones too."""
    reads = state.reads
    acked = {member: progress.acked_round for member, progress in state.progress.items()}
    acked[state.own_id] = reads.last_round
    confirmed = state.membership.reached_by_majority(acked)
    while reads.rounds and reads.rounds[0].number <= confirmed:
        read_round = reads.rounds.popleft()
        state.flush_due = state.flush_due or bool(reads.waiting or reads.requests)
        for request in read_round.requests:
            if request.source == state.own_id:
                reads.answer(request.contexts, read_round.index)
            else:
                _reply(state, request.source, request.batch, index=read_round.index, reject=False)


def _reply(state: State, target: str, batch: int, *, index: int, reject: bool) -> None:
    commit = 0
    if (progress := state.progress.get(target)) is not None and not reject:
        # The follower serves the read once it has applied `index`, so it must learn that this is committed.
        commit = min(state.log.commit, progress.match)
        progress.commit_sent = max(progress.commit_sent, commit)
        progress.commit_owed = max(progress.commit_owed, index)
        state.flush_due = True
    state.send_now.append(
        Message(
            MessageKind.READ_INDEX_REPLY,
            state.own_id,
            target,
            state.term,
            round=batch,
            log_index=index,
            commit=commit,
            reject=reject,
        )
    )
