"""Deliberate bugs about what is believed: whose clock counts, when a right ends, whose state is wrong and who
may copy it. Each names the quick test that has to catch it.
"""

from tests.mutants.mutant import Mutant

_STANDING = "tests/unit/coordinator/member/test_member_standing.py::test_"
_TIME = "tests/unit/coordinator/test_service_time.py::test_"
_CLOCKS = "tests/unit/coordinator/member/test_member_clocks.py::test_"
_KEPT = "tests/unit/runtime/test_kept_time.py::test_"
_ORPHANS = "tests/unit/node/custody/test_orphans.py::test_"
_JUMP = f"{_CLOCKS}jump_of_all_clocks_ends_nothing_and_dates_nothing_back"
_DIVERGENCE = "tests/unit/coordinator/member/test_divergence.py::test_"
_TOUCHED = "tests/unit/coordinator/machine/execution/test_slice_changes.py::test_"
_SNAPSHOTS = "tests/unit/coordinator/storage/test_sound_snapshots.py::test_"
_ENDS = (
    "tests/unit/coordinator/machine/test_permission_ends.py::test_permission_holds_until_its_last_millisecond"
)

CLOCKS = (
    Mutant.of(
        "change dated by the leader's own clock",
        "coordinator/member/driver",
        "if is_ending(command) else self._clocks.now_ms()",
        "if is_ending(command) else self._clocks._wall_ms()",
        f"{_TIME}records_and_tokens_are_dated_by_most_clocks",
    ),
    Mutant.of(
        "change of the group dated by the leader's own clock",
        "coordinator/member/driver",
        "encode_entry(command, 0, 0, 0, at_ms=self._clocks.now_ms())",
        "encode_entry(command, 0, 0, 0, at_ms=self._clocks._wall_ms())",
        f"{_TIME}change_of_the_group_is_dated_by_most_clocks_and_an_end_by_the_earliest",
    ),
    Mutant.of(
        "end dated by most clocks",
        "coordinator/member/member_clocks",
        "min(0, found.correction_ms, found.kept_ms)",
        "found.correction_ms",
        f"{_TIME}change_of_the_group_is_dated_by_most_clocks_and_an_end_by_the_earliest",
    ),
    Mutant.of(
        "token judged by the leader's own clock",
        "coordinator/service",
        "CallerVerifier(view, clocks.now_ms)",
        "CallerVerifier(view, now_ms)",
        f"{_TIME}token_is_good_by_most_clocks_alone",
    ),
    Mutant.of(
        "right judged by the leader's own clock",
        "coordinator/service",
        "self._store.answer(query, at_ms=self._clocks.now_ms())",
        "self._store.answer(query, at_ms=now_ms())",
        f"{_TIME}permissions_and_links_are_judged_by_most_clocks",
    ),
    Mutant.of(
        "nodes told the leader's own clock",
        "coordinator/service",
        "HeartbeatReply(version, leader, clocks.now_ms(), rules,",
        "HeartbeatReply(version, leader, now_ms(), rules,",
        f"{_TIME}nodes_are_told_the_time_of_most_clocks",
    ),
    Mutant.of(
        "token minted by the leader's own clock",
        "coordinator/user_tokens",
        "        at_ms = self._clocks.now_ms()\n        token = self",
        "        at_ms = __import__('time').time_ns() // 1_000_000\n        token = self",
        f"{_TIME}records_and_tokens_are_dated_by_most_clocks",
    ),
    Mutant.of(
        "certificate signed by the leader's own clock",
        "coordinator/server",
        "            clock_ms=self.clocks.shown_ms,\n        )\n        self.authority",
        "        )\n        self.authority",
        f"{_TIME}certificates_are_signed_by_most_clocks",
    ),
    Mutant.of(
        "own clock counted twice",
        "coordinator/service",
        "if call.is_primary and identity != self._identity:",
        "if call.is_primary:",
        f"{_STANDING}own_clock_is_told_by_nobody_else",
    ),
    Mutant.of(
        "clock of each process of a node counted",
        "coordinator/service",
        "if call.is_primary and identity != self._identity:",
        "if identity != self._identity:",
        f"{_STANDING}own_clock_is_told_by_nobody_else",
    ),
    Mutant.of(
        "one of two clocks called wrong",
        "metadata/model/safety_limits",
        "closest_ms = low_ms if low_ms > 0 else high_ms if high_ms < 0 else 0",
        "closest_ms = low_ms or high_ms",
        f"{_CLOCKS}of_two_clocks_none_is_called_wrong",
    ),
    Mutant.of(
        "clocks of coordinators counted beside those of nodes",
        "coordinator/member/member_clocks",
        "return nodes_ms if is_told else list(offsets_ms.values())",
        "return list(offsets_ms.values())",
        f"{_CLOCKS}coordinators_count_no_more_where_there_are_nodes_enough",
    ),
    Mutant.of(
        "node beside a leader vouches for its wrong clock",
        "coordinator/member/member_clocks",
        "is_told = len(nodes_ms) >= NODES_MIN and not are_split(nodes_ms)",
        "is_told = len(nodes_ms) >= NODES_MIN",
        f"{_CLOCKS}node_of_our_own_machine_does_not_save_a_wrong_clock_from_the_coordinators",
    ),
    Mutant.of(
        "clock that fell silent counts for ever",
        "coordinator/member/member_clocks",
        "if at_s - shown[1] <= CLOCK_AGE_MAX_S",
        "if True",
        f"{_CLOCKS}clock_that_was_not_heard_for_long_counts_no_more",
    ),
    Mutant.of(
        "one look at a clock is enough to hand over",
        "coordinator/member/member_clocks",
        "return self._wrong_looks >= WRONG_LOOKS",
        "return self._wrong_looks > 0",
        f"{_CLOCKS}one_look_is_no_reason_to_hand_over",
    ),
    Mutant.of(
        "certificate signed by the time that is kept",
        "coordinator/server",
        "            clock_ms=self.clocks.shown_ms,\n        )\n        self.authority",
        "            clock_ms=self.clocks.now_ms,\n        )\n        self.authority",
        f"{_TIME}certificates_are_signed_by_most_clocks",
    ),
    Mutant.of(
        "certificates of before a jump refused",
        "coordinator/server",
        "clocks_ms=self.clocks.both_ms,",
        "clocks_ms=lambda: [self.clocks.shown_ms()],",
        f"{_TIME}certificates_are_signed_by_most_clocks",
    ),
    Mutant.of(
        "clocks that jumped ahead believed soon",
        "runtime/kept_time",
        "wait_s = WAIT_S if is_ahead else min(WAIT_S,",
        "wait_s = min(WAIT_S,",
        f"{_KEPT}jump_back_soon_after_the_first_start_is_followed_soon_and_one_ahead_after_a_day",
    ),
    Mutant.of(
        "last time of a day of doubt believed",
        "runtime/kept_time",
        "closest = min if is_ahead else max",
        "closest = max if is_ahead else min",
        f"{_KEPT}only_what_the_clocks_showed_for_the_whole_day_is_followed",
    ),
    Mutant.of(
        "pause counts for no wait",
        "runtime/kept_time",
        "since_s=saved.doubt.since_s - pause_s",
        "since_s=saved.doubt.since_s",
        f"{_KEPT}lab_that_is_switched_off_again_and_again_is_behind_by_the_last_pause_alone",
    ),
    Mutant.of(
        "start believes the clocks",
        "runtime/kept_time",
        "<= NEAR_MS:",
        "<= 10**15:",
        f"{_KEPT}start_with_clocks_ahead_ends_nothing_however_often_it_is_repeated",
    ),
    Mutant.of(
        "step back doubted",
        "runtime/kept_time",
        "if -STEP_MS <= ahead_ms",
        "if -1 <= ahead_ms",
        f"{_KEPT}step_back_is_followed_at_once",
    ),
    Mutant.of(
        "time of the leader not kept",
        "runtime/kept_time",
        "            self._set(ahead_ms, running_s)",
        "            pass",
        f"{_KEPT}coordinator_that_is_new_during_a_jump_takes_over_the_time_of_the_leader",
    ),
    Mutant.of(
        "pause told as a jump",
        "runtime/kept_time",
        "<= self._pause_ms + STEP_MS",
        "<= STEP_MS",
        f"{_KEPT}lab_that_is_switched_off_again_and_again_is_behind_by_the_last_pause_alone",
    ),
    Mutant.of(
        "clocks that fall behind date changes back",
        "coordinator/member/member_clocks",
        "return self._wall_ms() + max(found.correction_ms, found.kept_ms)",
        "return self._wall_ms() + found.correction_ms",
        _JUMP,
    ),
    Mutant.of(
        "jump of all clocks ends things",
        "coordinator/member/member_clocks",
        "min(0, found.correction_ms, found.kept_ms)",
        "min(0, found.correction_ms)",
        _JUMP,
    ),
    Mutant.of(
        "saved time of another process not used",
        "coordinator/member/member_clocks",
        "KeptTime(saved, wall_ms()",
        "KeptTime(None, wall_ms()",
        f"{_CLOCKS}next_process_goes_on_with_the_time_that_is_kept",
    ),
    Mutant.of(
        "content over a quota dated as anything else",
        "coordinator/member/proposing",
        "    commands.CollectOverQuota,\n    commands.CollectPurged,\n    commands.EndHolds,\n",
        "    commands.CollectPurged,\n    commands.EndHolds,\n",
        f"{_TIME}change_of_the_group_is_dated_by_most_clocks_and_an_end_by_the_earliest",
    ),
    Mutant.of(
        "expire due by the leader's own clock",
        "coordinator/reconcile/jobs",
        "ending = context.store, context.clocks.ending_ms",
        "ending = context.store, context.clocks.now_ms",
        f"{_TIME}clocks_that_jump_ahead_make_nothing_due_before_they_are_believed",
    ),
    Mutant.of(
        "gc due by the leader's own clock",
        "coordinator/reconcile/context",
        "is_ending = isinstance(query, CountCollectable)",
        "is_ending = False",
        f"{_TIME}clocks_that_jump_ahead_make_nothing_due_before_they_are_believed",
    ),
    Mutant.of(
        "quota due by the leader's own clock",
        "coordinator/reconcile/quotas",
        "store, at_ms = self._context.store, self._context.clocks.ending_ms()",
        "store, at_ms = self._context.store, self._context.clocks.now_ms()",
        f"{_TIME}clocks_that_jump_ahead_make_nothing_due_before_they_are_believed",
    ),
    Mutant.of(
        "admin token dated by the machine's clock",
        "coordinator/admin/setup",
        "max(now_ms(), saved.kept_ms if saved else 0)",
        "now_ms() if saved else 0",
        "tests/unit/coordinator/admin/test_admin_tokens.py"
        "::test_admin_token_is_dated_by_the_time_that_is_kept_while_clocks_are_behind_it",
    ),
    Mutant.of(
        "quarantine emptied by the node's own clock",
        "node/custody/compare",
        "min(self._context.clock_s(), self._context.kept_s())",
        "self._context.clock_s()",
        f"{_ORPHANS}clock_that_jumps_ahead_removes_nothing_from_quarantine_for_good",
    ),
    Mutant.of(
        "unknown content old by the node's own clock",
        "node/custody/context",
        "clocks_s = self.clock_s(), self.kept_s()",
        "clocks_s = (self.clock_s(),)",
        f"{_ORPHANS}clock_that_jumps_makes_no_content_old",
    ),
    Mutant.of(
        "unclaimed content old by the node's own clock",
        "node/custody/orphans",
        "return all(abs(at_s",
        "return any(abs(at_s",
        f"{_ORPHANS}clock_that_jumps_makes_no_content_old",
    ),
    Mutant.of(
        "half-written file that grows removed",
        "node/storage/leftovers",
        "if seen is None or seen[0] != changed_ns:",
        "if seen is None:",
        f"{_ORPHANS}half_written_file_that_grows_stays_whatever_the_clock_of_the_machine_shows",
    ),
    Mutant.of(
        "expired permission on a bucket honoured",
        "coordinator/machine/execution/access",
        '_ON_BUCKET = f"SELECT level FROM bucket_permissions WHERE bucket_id = ? AND {_GRANTED}"',
        '_ON_BUCKET = "SELECT level FROM bucket_permissions WHERE bucket_id = ?"'
        ' " AND principal IN (SELECT value FROM json_each(?)) AND ? > 0"',
        f"{_ENDS}[0-bucket-user:ulla]",
    ),
    Mutant.of(
        "permission honoured a millisecond too long",
        "coordinator/machine/execution/access",
        "(expires_at_ms IS NULL OR expires_at_ms > ?)",
        "(expires_at_ms IS NULL OR expires_at_ms >= ?)",
        f"{_ENDS}[0-file-user:ulla]",
    ),
    Mutant.of(
        "permission ends a millisecond too soon",
        "coordinator/machine/execution/access",
        "(expires_at_ms IS NULL OR expires_at_ms > ?)",
        "(expires_at_ms IS NULL OR expires_at_ms > ? + 1)",
        f"{_ENDS}[1-file-user:ulla]",
    ),
    Mutant.of(
        "record kept for whom a right ends",
        "coordinator/machine/execution/access",
        "json_each(:held)) AND expires_at_ms IS NULL",
        "json_each(:held))",
        "tests/unit/coordinator/machine/test_permission_ends.py"
        "::test_right_that_lasts_is_told_from_one_that_ends",
    ),
)

STATES = (
    Mutant.of(
        "member whose state is wrong answers reads",
        "coordinator/service",
        "if self._digests.is_odd:",
        "if False:",
        f"{_STANDING}member_whose_state_is_wrong_answers_no_reads_and_gives_no_copy",
    ),
    Mutant.of(
        "state found to be wrong while a read waits is read",
        "coordinator/service",
        "        self._require_right_state()\n        if peer is not None:\n",
        "        if peer is not None:\n",
        "tests/unit/coordinator/rpc/test_open_connections.py"
        "::test_read_that_was_asked_before_the_state_was_found_to_be_wrong_is_asked_of_another",
    ),
    Mutant.of(
        "snapshot offered while members differ",
        "coordinator/member/driver",
        "if why := self.making.witnesses.forbids:",
        'if why := "":',
        f"{_STANDING}no_copy_is_given_while_members_differ_of_which_none_is_known_to_be_odd",
    ),
    Mutant.of(
        "snapshot handed out to its end while members differ",
        "coordinator/service",
        "if why := self._digests.forbids:  # the",
        'if why := "":  # the',
        f"{_STANDING}no_copy_is_given_while_members_differ_of_which_none_is_known_to_be_odd",
    ),
    Mutant.of(
        "snapshot made without leave",
        "coordinator/member/snapshot_making",
        "        if not self._may_hand_out():\n            return\n        try:\n",
        "        try:\n",
        f"{_STANDING}snapshot_that_is_made_while_doubts_come_up_is_not_handed_out[]",
    ),
    Mutant.of(
        "leave asked for before the snapshot is made alone",
        "coordinator/member/snapshot_making",
        "            if not self._may_hand_out():\n                return\n",
        "",
        f"{_STANDING}snapshot_that_is_made_while_doubts_come_up_is_not_handed_out[call]",
    ),
    Mutant.of(
        "snapshot that nobody vouched for told as vouched",
        "coordinator/member/snapshot_making",
        'origin = "" if is_vouched else self._snapshots.origin() or self._own_id',
        'origin = "" if is_vouched else self._snapshots.origin()',
        f"{_STANDING}snapshot_that_nobody_vouches_for_says_whose_state_it_is",
    ),
    Mutant.of(
        "snapshot installed unchecked",
        "coordinator/storage/snapshot_store",
        '        if examined.flaw or self._note.content not in ("", examined.content):\n',
        "        if False:\n",
        f"{_SNAPSHOTS}rows_that_nobody_vouched_for_are_not_taken",
    ),
    Mutant.of(
        "snapshot of another place installed",
        "coordinator/storage/snapshot_store",
        "        if found != self._meta:\n",
        "        if False:\n",
        "tests/unit/coordinator/storage/test_snapshot_store.py"
        "::test_snapshot_that_holds_another_state_than_was_offered_is_refused",
    ),
    Mutant.of(
        "state given up for one that nobody vouched for",
        "coordinator/member/snapshot_fetch",
        "if not incoming.is_vouched and (why := self._forbids()):",
        'if why := "":',
        "tests/unit/coordinator/member/test_snapshot_fetch.py"
        "::test_state_that_may_be_right_is_given_up_for_one_that_a_majority_has_alone",
    ),
    Mutant.of(
        "taker takes a copy for its own state",
        "coordinator/storage/snapshot_store",
        "write_origin(self._origin_path, self._note.origin)",
        'write_origin(self._origin_path, "")',
        f"{_SNAPSHOTS}taker_knows_whose_state_it_has_from_then_on",
    ),
    Mutant.of(
        "unreadable origin is one's own state",
        "coordinator/storage/snapshot_origins",
        "        return UNKNOWN\n",
        '        return ""\n',
        f"{_STANDING}origin_that_cannot_be_read_is_no_state_of_ones_own",
    ),
    Mutant.of(
        "who cannot tell its origin is a witness",
        "coordinator/member/divergence",
        "        if reports[voter].origin == UNKNOWN:\n            continue\n",
        "",
        f"{_DIVERGENCE}who_cannot_tell_whose_state_it_has_is_no_witness",
    ),
    Mutant.of(
        "half of the voters decide who is odd",
        "coordinator/member/divergence",
        "if 2 * len(roots) > len(set(voters))]",
        "if 2 * len(roots) >= len(set(voters))]",
        f"{_DIVERGENCE}half_of_the_voters_is_no_majority",
    ),
    Mutant.of(
        "copies are witnesses",
        "coordinator/member/divergence",
        "setdefault(reports[voter].digest, set()).add(_root(voter, reports))",
        "setdefault(reports[voter].digest, set()).add(voter)",
        f"{_DIVERGENCE}copy_and_its_source_are_no_majority_against_the_sound_third",
    ),
    Mutant.of(
        "what was agreed proves something of touched rows",
        "coordinator/member/divergence",
        "is_sure = len(confirmed) == 1 and not any(report.touched for report in reports.values())",
        "is_sure = len(confirmed) == 1",
        f"{_DIVERGENCE}one_that_knows_the_rows_were_touched_makes_the_past_no_proof",
    ),
    Mutant.of(
        "key that a row moves to is not noted",
        "coordinator/machine/execution/slice_changes",
        '(moved, "NEW")',
        '(moved, "OLD")',
        f"{_TOUCHED}every_way_to_change_a_row_notes_its_keys_and_may_be_repeated",
    ),
    Mutant.of(
        "key that is noted already makes the change fail",
        "coordinator/machine/execution/slice_changes",
        " ON CONFLICT DO NOTHING",
        "",
        f"{_TOUCHED}every_way_to_change_a_row_notes_its_keys_and_may_be_repeated",
    ),
    Mutant.of(
        "learners decide who is odd",
        "coordinator/member/divergence",
        "for voter in sorted(set(voters) & set(reports)):",
        "for voter in sorted(set(reports)):",
        f"{_DIVERGENCE}learner_can_be_odd_but_makes_no_majority",
    ),
    Mutant.of(
        "odd one ends while it is needed",
        "coordinator/member/divergence",
        "2 * len(sound) > len(set(voters)) and len(set(sound)) == 1",
        "len(set(sound)) == 1",
        f"{_DIVERGENCE}odd_one_is_needed_until_the_others_are_a_majority_with_one_digest",
    ),
    Mutant.of(
        "own report in the place of the own digest",
        "coordinator/member/divergence",
        "            report = replace(report, digest=own)\n",
        "            pass\n",
        f"{_DIVERGENCE}own_report_does_not_take_the_place_of_the_own_digest",
    ),
    Mutant.of(
        "batch goes on beyond where the state is hashed",
        "coordinator/storage/pinned_state",
        "            return entries[:end], entries[end:]\n",
        "            return entries, []\n",
        f"{_SNAPSHOTS}batch_ends_where_all_of_the_state_is_hashed",
    ),
    Mutant.of(
        "damaged structure handed out",
        "coordinator/storage/snapshot_store",
        "            if found.flaw:\n",
        "            if False:\n",
        f"{_SNAPSHOTS}state_with_an_index_of_zeros_is_not_handed_out",
    ),
)

BELIEFS = CLOCKS + STATES
