"""The deliberate bugs of the consensus: the simulator's scenarios and seeds must catch them, or a test."""

from tests.mutants.mutant import Mutant

_TICKS = "tests/unit/coordinator/raft/test_ticks.py::test_"

_HEAD_WITH_TERM = """\
        if hard_state is not None:
            head += form.encode_hard_state(hard_state)
        if trunc"""
_DATA_WITH_TERM = """\
data = b"".join((head, *records))
        data += form.encode_hard_state(hard_state) if hard_state is not None else b\"\""""
_KEEPS_LOG = """\
    if log.matches(meta.index, meta.term):
        log.commit_to(meta.index)
        return False
"""


ELECTION = (
    Mutant.of("vote not persisted", "coordinator/storage/segment", ") + hard_state.vote.encode()", ")"),
    Mutant.of(
        "vote granted twice",
        "coordinator/raft/election",
        "may_vote = state.vote == message.source or (not state.vote and not state.leader)",
        "may_vote = not state.leader",
    ),
    Mutant.of(
        "vote for a shorter log",
        "coordinator/raft/election",
        "grants = may_vote and state.log.is_up_to_date(message.log_index, message.log_term)",
        "grants = may_vote",
    ),
    Mutant.of(
        "logs compared by length alone",
        "coordinator/raft/log_view",
        "return (term, index) >= (self.last_term, self.last_index)",
        "return index >= self.last_index",
    ),
    Mutant.of(
        "vote answered before its sync",
        "coordinator/raft/election",
        "state.send_after_sync.append(reply)",
        "state.send_now.append(reply)",
    ),
    Mutant.of(
        "vote asked for before the own sync",
        "coordinator/raft/election",
        "state.send_after_sync.extend(",
        "state.send_now.extend(",
    ),
    Mutant.of(
        "pre-vote granted to any log",
        "coordinator/raft/election",
        "grants = message.term > state.term and state.log.is_up_to_date(message.log_index, message.log_term)",
        "grants = message.term > state.term",
    ),
    Mutant.of(
        "live leader unseated by a candidate",
        "coordinator/raft/core",
        "if asks_for_vote and not is_handed_over and election.has_live_leader(state):",
        "if False:",
    ),
    Mutant.of(
        "leader without a majority goes on",
        "coordinator/raft/election",
        "if state.membership.reached_by_majority(active) == 0:",
        "if False:",
    ),
    Mutant.of(
        "transfer to a member without the whole log",
        "coordinator/raft/replication",
        "if target and state.progress[target].match == state.log.last_index:",
        "if target:",
    ),
    Mutant.of(
        "proposals taken during a transfer",
        "coordinator/raft/core",
        """        if state.transfer_target:
            raise ProposalRefused(f"the lead is being handed over to {state.transfer_target}")
        if not 0""",
        "        if not 0",
    ),
)

REPLICATION = (
    Mutant.of(
        "commit of an old term's entry by count",
        "coordinator/raft/replication",
        "if index <= state.log.commit or state.log.term(index) != state.term:",
        "if index <= state.log.commit:",
    ),
    Mutant.of(
        "conflict not truncated on disk",
        "coordinator/raft/log_view",
        "self._truncate_from = index if pending is None else min(pending, index)",
        "self._truncate_from = pending",
    ),
    Mutant.of(
        "truncation on a stale append",
        "coordinator/raft/log_view",
        "            if not self.matches(entry.index, entry.term):\n",
        "            if entry.index > self.commit:\n",
    ),
    Mutant.of(
        "commit index beyond the match",
        "coordinator/raft/replication",
        "log.commit_to(min(message.commit, matched_index))",
        "log.commit_to(min(message.commit, log.last_index))",
    ),
    Mutant(
        "heartbeat commits beyond the match",
        (
            (
                "coordinator/raft/replication.py",
                "commit = min(state.log.commit, progress.match)",
                "commit = state.log.commit",
            ),
            (
                "coordinator/raft/replication.py",
                "    state.log.commit_to(message.commit)\n",
                "    state.log.commit_to(min(message.commit, state.log.last_index))\n",
            ),
            (
                "coordinator/raft/replication.py",
                "    if message.commit > state.log.last_index:\n",
                "    if False:\n",
            ),
        ),
    ),
    Mutant.of(
        "majority off by one in even groups",
        "coordinator/raft/membership",
        "self.quorum = len(self.voters) // 2 + 1",
        "self.quorum = (len(self.voters) + 1) // 2",
    ),
    Mutant.of(
        "whole own log acknowledged",
        "coordinator/raft/replication",
        "    matched_index = message.log_index + len(message.entries)\n",
        "    matched_index = log.last_index\n",
    ),
    Mutant.of(
        "leader counts itself before its sync",
        "coordinator/raft/replication",
        "    if progress.match < state.log.stable_last:\n        progress.match = state.log.stable_last\n",
        "    if progress.match < state.log.last_index:\n        progress.match = state.log.last_index\n",
    ),
    Mutant.of(
        "overwritten entries count as written",
        "coordinator/raft/log_view",
        "            written = min(written, self._truncate_from - 1)",
        "            pass",
    ),
    Mutant.of(
        "lost append is not sent again",
        "coordinator/raft/progress",
        "            self.probe_due = True\n            self.match_at_tick = -1",
        "            self.match_at_tick = -1",
    ),
    Mutant.of(
        "what is committed waits for a quiet heartbeat",
        "coordinator/raft/progress",
        "is_behind = self.match < last_index or self.commit_sent < commit",
        "is_behind = self.match < last_index",
        f"{_TICKS}what_is_committed_is_told_with_the_next_tick",
    ),
    Mutant.of(
        "lost append waits for a quiet heartbeat",
        "coordinator/raft/progress",
        "is_behind = self.match < last_index or self.commit_sent < commit",
        "is_behind = self.commit_sent < commit",
        f"{_TICKS}lost_append_is_asked_after_with_the_next_tick",
    ),
    Mutant.of(
        "who slept stands before it has listened",
        "coordinator/raft/core",
        "return max(1, state.config.quiet_ticks + QUIET_GRACE_TICKS - state.election_elapsed)",
        "return max(1, state.election_timeout - state.election_elapsed)",
        f"{_TICKS}follower_sleeps_past_a_heartbeat_and_counts_the_rest_one_by_one",
    ),
    Mutant.of(
        "several ticks count as one",
        "coordinator/raft/election",
        "state.election_elapsed += ticks",
        "state.election_elapsed += 1",
        f"{_TICKS}ticks_at_once_are_the_same_as_one_after_the_other",
    ),
)

DISK = (
    Mutant.of(
        "acknowledged without a sync", "coordinator/raft/core", "or bool(entries) or truncate", "or truncate"
    ),
    Mutant.of(
        "sync left out",
        "coordinator/storage/raft_log",
        "            active.file.sync()\n            self._synced_bytes = self._position_bytes\n",
        "            self._synced_bytes = self._position_bytes\n",
    ),
    Mutant.of(
        "forgotten votes given again",
        "coordinator/raft/state",
        "return self.log.term(self.log.stable_last) <= self.lost_term",
        "return False",
    ),
    Mutant.of(
        "loss of a log taken for an installation",
        "coordinator/storage/reopening",
        "elif is_behind and promised.installing != (index, term):",
        "elif is_behind and promised.installing == (1, 1):",
    ),
    Mutant.of(
        "acknowledged before the sync",
        "coordinator/raft/replication",
        "    state.send_after_sync.append(\n        Message(MessageKind.APPEND_REPLY, state.own_id, leader,",
        "    state.send_now.append(\n        Message(MessageKind.APPEND_REPLY, state.own_id, leader,",
    ),
    Mutant.of(
        "commit index on disk ahead of the log",
        "coordinator/raft/core",
        "min(state.log.commit, state.log.stable_last))",
        "state.log.commit)",
    ),
    Mutant(
        "entries on disk before their term",
        (
            (
                "coordinator/storage/raft_log.py",
                _HEAD_WITH_TERM,
                "        if trunc",
            ),
            (
                "coordinator/storage/raft_log.py",
                'data = b"".join((head, *records))',
                _DATA_WITH_TERM,
            ),
        ),
    ),
    Mutant.of(
        "applied twice after a restart",
        "coordinator/member/member",
        "hard_state, index, rand,",
        "hard_state, index - 1, rand,",
    ),
    Mutant.of(
        "compaction beyond the durable state",
        "coordinator/member/member",
        "        index = durable_index\n",
        "        index = self.applied_index\n",
        "tests/unit/coordinator/storage/test_reopening.py"
        "::test_log_forgets_nothing_that_the_database_may_lose",
    ),
    Mutant.of(
        "vote forgotten with the log behind a snapshot",
        "coordinator/storage/reopening",
        "log.reset(HardState(known.term, known.vote, index), index, term)",
        'log.reset(HardState(known.term, "", index), index, term)',
    ),
    Mutant.of(
        "log of another history kept behind a snapshot",
        "coordinator/storage/reopening",
        "is_behind = index > log.last_index() or log.term(index) != term",
        "is_behind = index > log.last_index()",
    ),
)

READS = (
    Mutant.of(
        "read index without a round",
        "coordinator/raft/reads",
        "confirmed = state.membership.reached_by_majority(acked)",
        "confirmed = reads.last_round",
    ),
    Mutant.of(
        "follower reads without its leader",
        "coordinator/raft/reads",
        "        _forward(state)\n",
        "        contexts = tuple(state.reads.waiting)\n"
        "        state.reads.waiting.clear()\n"
        "        state.reads.answer(contexts, state.log.commit)\n",
    ),
    Mutant.of(
        "read served before it is applied",
        "coordinator/member/member",
        "if index > self.applied_index:",
        "if index < 0:",
    ),
    Mutant.of(
        "new leader reads before it has committed",
        "coordinator/raft/reads",
        "has_own_commit = state.log.term(state.log.commit) == state.term",
        "has_own_commit = True",
    ),
    Mutant.of(
        "reads are numbered alike after a restart",
        "coordinator/raft/state",
        "next_batch=rand.getrandbits(BATCH_NUMBER_BITS)",
        "next_batch=rand.getrandbits(BATCH_NUMBER_BITS) * 0",
    ),
)

MEMBERSHIP = (
    Mutant.of(
        "learner counted for a commit",
        "coordinator/raft/membership",
        "ascending = sorted(values.get(voter, 0) for voter in self.voters)",
        "ascending = sorted(values.get(voter, 0) for voter in self.voters + self.learners)",
    ),
    Mutant.of(
        "learner's vote counted",
        "coordinator/raft/membership",
        "granted = sum(votes.get(voter, False) for voter in self.voters)",
        "granted = sum(votes.values())",
    ),
    Mutant.of(
        "removed leader counts itself",
        "coordinator/raft/membership",
        "ascending = sorted(values.get(voter, 0) for voter in self.voters)",
        "ascending = sorted(values.get(voter, 0) for voter in {*self.voters, self.own_id})",
    ),
    Mutant.of(
        "two changes of the group at once",
        "coordinator/raft/core",
        "if state.log.memberships.latest_index > state.log.commit:",
        "if False:",
    ),
    Mutant.of(
        "change of the group by a new leader",
        "coordinator/raft/core",
        "        if state.log.term(state.log.commit) != state.term:\n            raise",
        "        if False:\n            raise",
    ),
    Mutant.of(
        "two voters in one change",
        "coordinator/raft/membership",
        "if len(set(target.voters) ^ set(self.voters)) > 1:",
        "if len(set(target.voters) ^ set(self.voters)) > 2:",
    ),
    Mutant.of(
        "change of the group waits for its commit",
        "coordinator/raft/membership",
        "        return self._steps[-1][1]",
        "        return self._steps[0][1]",
    ),
    Mutant.of(
        "truncated change of the group kept",
        "coordinator/raft/log_view",
        "self.memberships.note_truncated(index)",
        "pass",
    ),
)

SNAPSHOTS = (
    Mutant.of(
        "snapshot without its membership",
        "coordinator/raft/log_view",
        "self.memberships.note_restored(meta.index, meta.members)",
        "pass",
    ),
    Mutant.of(
        "snapshot drops the replies of sessions",
        "coordinator/storage/state_store",
        "                self._file.begin_anew()\n            self._load()",
        "                self._file.begin_anew()\n            self._load()\n"
        '            self._writer.execute("DELETE FROM replies")\n'
        '            self._writer.execute("DELETE FROM sessions")',
    ),
    Mutant.of(
        "snapshot over a log that goes on behind it",
        "coordinator/raft/snapshots",
        _KEEPS_LOG,
        "",
    ),
    Mutant(
        "snapshot over newer state",
        (
            (
                "coordinator/raft/snapshots.py",
                "if state.role is not RaftRole.FOLLOWER or meta.index <= log.commit:",
                "if state.role is not RaftRole.FOLLOWER:",
            ),
            (
                "coordinator/raft/snapshots.py",
                _KEEPS_LOG,
                "",
            ),
            (
                "coordinator/raft/log_view.py",
                "        assert meta.index > self.commit, f",
                "        assert True, f",
            ),
        ),
    ),
    Mutant.of(
        "offer acknowledged by length alone",
        "coordinator/raft/snapshots",
        "elif log.matches(message.log_index, message.log_term):",
        "elif log.last_index >= message.log_index:",
    ),
)

CLIENTS = (
    Mutant.of(
        "replies of sessions are not kept",
        "coordinator/machine/dispatch",
        "        self._sessions.keep_reply(log_index, envelope, reply)\n",
        "",
    ),
    Mutant.of(
        "retry in one batch with its first applied again",
        "coordinator/machine/execution/replies",
        "reply = known.replies.get(sequence)",
        "reply = None",
    ),
    Mutant.of(
        "late copy of a command applied",
        "coordinator/machine/execution/replies",
        "if sequence < known.acknowledged_below:",
        "if False:",
    ),
    Mutant.of(
        "another leader's entry acknowledged",
        "coordinator/member/member",
        "            if term == entry.term:\n",
        "            if term:\n",
    ),
)

CONSENSUS = ELECTION + REPLICATION + DISK + READS + MEMBERSHIP + SNAPSHOTS + CLIENTS
