"""Deliberate bugs around members: who is heard and answered, what a liar comes to, who leads. Each names the
quick test that has to catch it.
"""

from tests.mutants.mutant import Mutant

_CONNECTIONS = "tests/unit/coordinator/rpc/test_open_connections.py::test_"
_HOSTILE = "tests/unit/coordinator/rpc/test_hostile_messages.py::test_"
_LYING = "tests/unit/coordinator/rpc/test_lying_members.py::test_"
_MEMBERSHIP = "tests/unit/coordinator/test_admission.py::test_"
_INSTANCES = "tests/unit/coordinator/machine/test_instances.py::test_"
_ADMISSION = "tests/unit/node/peerapi/test_admission.py::test_"
_FITNESS = "tests/unit/coordinator/member/test_fitness.py::test_"

_CALLS = "            async for data in _messages(socket):\n"
_CALLER = "                peer = self._peer(request, takes_expired=True)\n"
_INSTANCE = "await self._admit_instance(self._peer(request), request)"

CONNECTIONS = (
    Mutant.of(
        "caller's certificate checked at the handshake alone",
        "coordinator/rpc/server",
        f"{_CALLS}{_CALLER}",
        f"            peer = self._peer(request, takes_expired=True)\n{_CALLS}",
        f"{_CONNECTIONS}call_of_a_removed_node_ends_its_open_connection",
    ),
    Mutant.of(
        "sender's certificate checked at the handshake alone",
        "coordinator/rpc/server",
        _INSTANCE,
        "await self._admit_instance(peer, request)",
        f"{_CONNECTIONS}message_of_a_removed_coordinator_reaches_no_core",
    ),
    Mutant.of(
        "instance compared at the handshake alone",
        "coordinator/rpc/server",
        _INSTANCE,
        "self._peer(request)",
        f"{_CONNECTIONS}message_of_an_earlier_instance_reaches_no_core",
    ),
    Mutant.of(
        "removed coordinator goes on being answered",
        "coordinator/admission",
        "if identity.id in self._view().removed_coordinators:",
        "if False:",
        f"{_CONNECTIONS}call_of_a_removed_coordinator_ends_its_open_connection",
    ),
    Mutant.of(
        "revoked certificate of a node admitted by coordinators",
        "coordinator/admission",
        "is_live = self._is_live(identity.id, peer.serial)",
        "is_live = True",
        f"{_CONNECTIONS}call_of_a_removed_node_ends_its_open_connection",
    ),
    Mutant.of(
        "displaced process of a node goes on being answered",
        "coordinator/admission",
        "(why := contradiction(node.speaker, peer.instance)):",
        "(why := ''):",
        f"{_MEMBERSHIP}later_start_is_taken_when_nobody_was_heard_for_a_while",
    ),
    Mutant.of(
        "copy of a node's directory taken beside the node",
        "coordinator/admission",
        "        if silent_s < PLACEABLE_S:\n",
        "        if False:\n",
        f"{_MEMBERSHIP}copy_is_refused_and_told_while_its_original_is_heard",
    ),
    Mutant.of(
        "who does not speak for a node reports for it",
        "coordinator/admission",
        "            if not self.is_active_process(peer):\n",
        "            if False:\n",
        f"{_MEMBERSHIP}copy_is_refused_and_told_while_its_original_is_heard",
    ),
    Mutant.of(
        "stranger's certificate of a coordinator gives the state",
        "coordinator/admission",
        "if not is_open and known and",
        "if False and known and",
        f"{_MEMBERSHIP}coordinator_that_is_not_known_gets_the_view_and_nothing_else",
    ),
    Mutant.of(
        "earlier copy of a node's directory announces itself",
        "metadata/model/instance",
        "    if last.is_followed_by(now):\n",
        "    if True:\n",
        f"{_INSTANCES}another_directory_and_an_earlier_copy_are_refused",
    ),
    Mutant.of(
        "revoked node brought back by a late heartbeat",
        "coordinator/machine/nodes",
        '    if node.is_revoked:\n        raise Conflict(f"The node {command.node_id} is revoked.")\n',
        "",
        f"{_INSTANCES}heartbeat_that_was_under_way_brings_no_revoked_node_back",
    ),
    Mutant(
        "certificate that was never issued opens the peer port of a node",
        (
            (
                "node/peerapi/admission.py",
                "if identity.role is Role.NODE and not await _is_issued(peer, metadata, view):",
                "if False:",
            ),
        ),
        (f"{_ADMISSION}rightly_signed_certificate_that_was_never_issued_is_refused",),
    ),
    Mutant(
        "answer goes on to whose certificate was revoked",
        (("node/peerapi/admission.py", "                transport.abort()\n", "                pass\n"),),
        (f"{_ADMISSION}what_is_being_sent_is_broken_off_when_the_certificate_is_revoked",),
    ),
    Mutant(
        "token of a key that was replaced goes on counting",
        (("ca/usertoken.py", "    if now_ms >= signed.key_ends_at_ms:\n", "    if False:\n"),),
        ("tests/unit/ca/test_usertoken.py::test_token_of_a_key_that_was_replaced_ends_with_its_grace_time",),
    ),
    Mutant.of(
        "read answered to who was removed meanwhile",
        "coordinator/service",
        "        if peer is not None:\n            self._check_again(peer, known)\n",
        "",
        f"{_CONNECTIONS}read_that_was_asked_before_its_node_was_removed_is_refused[ReadCall]",
    ),
    Mutant.of(
        "heartbeat answered to who was removed meanwhile",
        "coordinator/service",
        "        self._check_again(peer, known)\n        clocks, rules",
        "        clocks, rules",
        f"{_CONNECTIONS}read_that_was_asked_before_its_node_was_removed_is_refused[HeartbeatCall]",
    ),
    Mutant.of(
        "heartbeat whose answer is not proved confirms the view",
        "metadata/rpc/view",
        "        if call.proof == PROOF_NONE:\n            return True\n",
        "",
        "tests/unit/metadata/rpc/test_view.py::test_what_is_not_proved_confirms_nothing",
    ),
    Mutant.of(
        "followers are not asked for proof while the leader is silent",
        "metadata/rpc/view",
        "                self._doubt()\n            return False",
        "                pass\n            return False",
        "tests/unit/metadata/rpc/test_view.py"
        "::test_followers_prove_their_answers_only_while_the_leader_is_silent",
    ),
    Mutant.of(
        "subscription answered to who was removed meanwhile",
        "coordinator/service",
        "        self._check_again(peer, known)\n        return reply\n",
        "        return reply\n",
        f"{_CONNECTIONS}subscription_of_a_removed_node_is_refused_when_it_is_answered",
    ),
    Mutant.of(
        "expired certificate goes on calling",
        "coordinator/rpc/server",
        "if not is_current and not isinstance(call, RenewCall):",
        "if False:",
        "tests/unit/coordinator/rpc/test_late_renewal.py"
        "::test_expired_node_gets_nothing_else_until_it_dials_with_a_new_certificate",
    ),
    Mutant.of(
        "certificate that has expired goes on sending",
        "coordinator/rpc/server",
        "if not self._is_current(peer) and not (takes_expired and peer.may_renew(at_ms)):",
        "if False:",
        f"{_CONNECTIONS}certificate_that_ends_ends_the_connections_that_it_opened",
    ),
    Mutant(
        "coordinator renews as late as a node",
        (
            (
                "ca/tls.py",
                "return is_near and self.identity.role is Role.NODE",
                "return is_near",
            ),
        ),
        ("tests/unit/coordinator/rpc/test_late_renewal.py::test_who_may_ask_for_a_certificate",),
    ),
    Mutant(
        "revoked certificate admitted by nodes",
        (("node/peerapi/admission.py", "if view.is_revoked(peer.serial):", "if False:"),),
        (
            (
                "tests/unit/node/peer/test_peer_transfer.py"
                "::test_revoked_certificate_is_refused_on_an_open_connection"
            ),
        ),
    ),
    Mutant(
        "removed node admitted by nodes",
        (("node/peerapi/admission.py", "    if not known:\n", "    if False:\n"),),
        ("tests/unit/node/peer/test_peer_transfer.py::test_removed_node_is_refused_on_an_open_connection",),
    ),
    Mutant(
        "member admitted by a view of any age",
        (("node/peerapi/admission.py", "current = view.require_fresh()", "current = view.current"),),
        ("tests/unit/node/peer/test_peer_transfer.py::test_nobody_is_admitted_by_a_view_that_is_too_old",),
    ),
    Mutant(
        "order taken from a node",
        (("node/peerapi/admission.py", "if request.path.startswith(ORDERS) and", "if False and"),),
        ("tests/unit/coordinator/rpc/test_node_client.py::test_passes_are_ordered_by_coordinators_only",),
    ),
)

LIARS = (
    Mutant.of(
        "message in another's name taken",
        "coordinator/rpc/server",
        "if message.source != peer.identity.id:",
        "if False:",
        f"{_HOSTILE}what_no_member_says_ends_its_connection_and_nothing_else",
    ),
    Mutant.of(
        "node sends raft messages",
        "coordinator/rpc/server",
        "        _require_raft(peer)\n",
        "",
        f"{_HOSTILE}node_sends_no_raft_messages",
    ),
    Mutant.of(
        "coordinator reports for another",
        "coordinator/admission",
        "if (identity.role, identity.id) != (Role.COORDINATOR, command.coordinator_id):",
        "if identity.role is not Role.COORDINATOR:",
        f"{_HOSTILE}coordinator_speaks_for_itself_and_proposes_nothing_else",
    ),
    Mutant.of(
        "node reports for another",
        "coordinator/admission",
        "if isinstance(command, OWN_COMMANDS) and command.node_id != identity.id:",
        "if False:",
        f"{_HOSTILE}node_speaks_for_itself_and_is_given_no_state",
    ),
    Mutant.of(
        "member proposes what only leaders do",
        "coordinator/admission",
        "if not isinstance(command, NODE_COMMANDS):",
        "if False:",
        f"{_HOSTILE}coordinator_speaks_for_itself_and_proposes_nothing_else",
    ),
    Mutant.of(
        "node is given the state",
        "coordinator/admission",
        'if identity.role is not Role.COORDINATOR:\n        raise Forbidden("Only coordinators may fetch',
        'if False:\n        raise Forbidden("Only coordinators may fetch',
        f"{_HOSTILE}node_speaks_for_itself_and_is_given_no_state",
    ),
    Mutant.of(
        "node lets a coordinator in",
        "coordinator/service",
        "require_coordinator(peer.identity)\n                return _encode(await self._join",
        "return _encode(await self._join",
        f"{_HOSTILE}node_speaks_for_itself_and_is_given_no_state",
    ),
    Mutant.of(
        "term without end entered",
        "coordinator/raft/core",
        "if message.term > state.term + TERM_LEAP_MAX:",
        "if False:",
        f"{_LYING}term_that_no_election_leads_to_is_not_entered",
    ),
    Mutant.of(
        "read answered by anyone",
        "coordinator/raft/reads",
        "if message.source != state.leader:",
        "if False:",
        f"{_LYING}read_is_answered_by_the_leader_alone",
    ),
    Mutant.of(
        "round of reads confirmed before it began",
        "coordinator/raft/replication",
        "max(progress.acked_round, min(message.round, state.reads.last_round))",
        "max(progress.acked_round, message.round)",
        f"{_LYING}answer_to_a_round_that_has_not_begun_confirms_no_read",
    ),
    Mutant.of(
        "lead taken at anyone's word",
        "coordinator/raft/election",
        "message.source == state.leader and ",
        "",
        f"{_LYING}lead_is_taken_at_the_word_of_the_leader_alone",
    ),
    Mutant.of(
        "vote taken back",
        "coordinator/raft/election",
        "state.votes.setdefault(voter, granted)",
        "state.votes[voter] = granted",
        f"{_LYING}member_that_takes_its_vote_back_has_voted",
    ),
    Mutant.of(
        "acknowledgement beyond the log counted",
        "coordinator/raft/replication",
        "elif message.log_index > state.log.last_index:",
        "elif False:",
        f"{_LYING}acknowledgement_of_what_was_never_sent_commits_nothing",
    ),
    Mutant.of(
        "refusal of what was acknowledged believed",
        "coordinator/raft/progress",
        "if refused_index <= self.match or self.state is ProgressState.SNAPSHOT:",
        "if self.state is ProgressState.SNAPSHOT:",
        f"{_LYING}refusal_of_what_was_acknowledged_takes_nothing_back",
    ),
    Mutant.of(
        "commit of an append clamped to the own end",
        "coordinator/raft/replication",
        "log.commit_to(min(message.commit, matched_index))",
        "log.commit_to(min(message.commit, log.last_index))",
        f"{_LYING}leader_commits_nothing_beyond_what_it_has_shown",
    ),
    Mutant.of(
        "commit of a heartbeat clamped to the own end",
        "coordinator/raft/replication",
        "    if message.commit > state.log.last_index:\n"
        '        raise AcknowledgedLost(f"{message.source} counts on entries that we never acknowledged")\n'
        "    state.log.commit_to(message.commit)\n",
        "    state.log.commit_to(min(message.commit, state.log.last_index))\n",
        f"{_LYING}leader_that_counts_on_what_was_never_acknowledged_is_not_followed",
    ),
)

LEADERS = (
    Mutant.of(
        "wrong clock leads",
        "coordinator/member/fitness",
        "Reluctance.CLOCK_WRONG: self.is_clock_wrong,",
        "Reluctance.CLOCK_WRONG: False,",
        f"{_FITNESS}leader_whose_clock_is_wrong_hands_over_to_one_whose_clock_is_right",
    ),
    Mutant.of(
        "full disk leads",
        "coordinator/member/fitness",
        "Reluctance.NO_ROOM: not self._has_room,",
        "Reluctance.NO_ROOM: False,",
        "tests/unit/coordinator/member/test_driver_group.py"
        "::test_lead_goes_to_who_has_room_whoever_gets_it_and_whenever_there_is_room",
    ),
    Mutant.of(
        "wrong state leads",
        "coordinator/member/fitness",
        "Reluctance.STATE_WRONG: self.is_state_wrong,",
        "Reluctance.STATE_WRONG: False,",
        f"{_FITNESS}leader_whose_state_is_wrong_hands_over_and_leads_again_only_if_no_other_can",
    ),
    Mutant.of(
        "lead handed to one that is no fitter",
        "coordinator/member/fitness",
        "self._hand_over(Reluctance(own - 1))",
        "self._hand_over(own)",
        f"{_FITNESS}lead_stays_where_no_other_is_fitter",
    ),
    Mutant.of(
        "lead handed to one that forgot its promises",
        "coordinator/member/succession",
        "most = min(reluctance_max, Reluctance.STATE_WRONG)",
        "most = reluctance_max",
        f"{_FITNESS}one_that_has_forgotten_its_promises_gets_the_lead_from_nobody",
    ),
    Mutant.of(
        "lead handed to one that lags, at once",
        "coordinator/member/succession",
        'return target if target and _keeps_up(live_voters(status)[target]) else ""',
        "return target",
        f"{_FITNESS}one_that_keeps_up_goes_before_a_willing_one_that_does_not",
    ),
    Mutant.of(
        "most advanced one before a willing one",
        "coordinator/member/succession",
        "return _keeps_up(progress), -progress.reluctance, progress.match",
        "return _keeps_up(progress), progress.match, -progress.reluctance",
        f"{_FITNESS}willing_one_goes_before_a_reluctant_one_that_is_ahead",
    ),
    Mutant.of(
        "silent one handed the lead",
        "coordinator/member/succession",
        "if voter != status.id and voter in progress and progress[voter].active",
        "if voter != status.id and voter in progress",
        f"{_FITNESS}lead_goes_to_none_that_is_silent_or_has_no_vote",
    ),
    Mutant.of(
        "reluctant one stands with the others",
        "coordinator/raft/election",
        "patience = state.config.election_ticks * state.reluctance",
        "patience = 0",
        "tests/unit/coordinator/raft/test_election.py::test_reluctant_members_stand_only_after_all_others",
    ),
    Mutant.of(
        "recovering member votes",
        "coordinator/raft/election",
        "    grants = grants and not state.is_recovering\n    if grants:\n",
        "    if grants:\n",
        "tests/unit/coordinator/storage/test_reopening.py"
        "::test_member_whose_log_lost_its_end_says_so_and_votes_for_nobody",
    ),
    Mutant.of(
        "recovering member stands",
        "coordinator/raft/state",
        "return self.log.memberships.may_stand and not self.is_recovering",
        "return self.log.memberships.may_stand",
        "tests/unit/coordinator/raft/test_election.py"
        "::test_member_that_forgot_its_promises_stands_and_votes_only_with_an_entry_of_a_later_term",
    ),
)

_OUTBOX = "tests/unit/metadata/rpc/test_websocket.py::test_"
_APPLYING = "tests/unit/coordinator/member/test_applying.py::test_"

TURNS = (
    Mutant.of(
        "answered before the write that was not waited for is done",
        "coordinator/member/driver",
        "            await writing\n",
        "            pass\n",
        "tests/unit/coordinator/member/test_slow_disk.py"
        "::test_change_is_acknowledged_after_its_sync_however_that_is_waited_for",
    ),
    Mutant.of(
        "read of a follower waits with the rest",
        "coordinator/member/applying",
        "if self._member.led_term or self._member.has_waiting_reads:",
        "if self._member.led_term:",
        f"{_APPLYING}follower_applies_later_what_nobody_waits_for_and_at_once_what_a_read_does",
    ),
    Mutant.of(
        "message that the socket takes late is dropped",
        "metadata/rpc/websocket",
        "                        await _resumed(*held)\n",
        "                        held[0].close()\n",
        f"{_OUTBOX}message_that_the_socket_took_late_is_sent_once_and_before_those_that_follow",
    ),
    Mutant.of(
        "frames overtake a message that the socket has not taken",
        "metadata/rpc/websocket",
        "while self._frames and self._socket is not None and not self._stopped.is_set():",
        "while self._frames and self._socket is not None:",
        f"{_OUTBOX}message_that_the_socket_took_late_is_sent_once_and_before_those_that_follow",
    ),
)

MEMBERS = CONNECTIONS + LIARS + LEADERS + TURNS
