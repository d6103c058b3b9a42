"""Deliberate bugs about content: how it is completed and kept, which room it takes, who may read or end it,
and which attempts are recorded. Each names the quick test that has to catch it.
"""

from tests.mutants.mutant import Mutant

_MACHINE = "tests/unit/coordinator/machine"
_CUSTODY = "tests/unit/node/custody"
_COMPLETION = f"{_MACHINE}/test_uploads.py::test_"
_REPLICAS = f"{_MACHINE}/test_replicas.py::test_"
_PARTS = f"{_MACHINE}/test_parts.py::test_"
_QUOTAS = f"{_MACHINE}/test_quotas.py::test_"
_LINKS = f"{_MACHINE}/test_public_tokens.py::test_"
_PACKING = f"{_CUSTODY}/test_packing.py::test_"
_PAGES = "tests/unit/runtime/test_audit_pages.py::test_"
_RULES = "tests/unit/coordinator/member/test_rules_upgrade.py::test_"


def _of(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, ((file, old, new),), tests)


COMPLETION = (
    Mutant.of(
        "a later field of a kind is not changed",
        "coordinator/machine/kinds",
        "    _store_later(change, kind, sequence, values)\n",
        "",
        f"{_MACHINE}/test_later_fields.py::test_field_that_was_given_is_shown_and_changes",
    ),
    Mutant.of(
        "a coordinator starts with a job that nobody works on",
        "coordinator/reconcile/jobs",
        "odd = self._by_kind.keys() ^ {*JOBS}",
        "odd = self._by_kind.keys() - {*JOBS}",
        "tests/unit/coordinator/reconcile/test_repair_failures.py::"
        "test_coordinator_does_not_start_with_a_job_that_nobody_works_on",
    ),
    Mutant.of(
        "upload completed by a node that does not hold it",
        "coordinator/machine/uploads",
        "if command.node_id and live is not None and not _is_held(",
        "if live is None and not _is_held(",
        f"{_COMPLETION}holder_that_was_taken_over_from_completes_nothing",
    ),
    Mutant.of(
        "completion counts on a replica that was dropped since",
        "coordinator/machine/uploads",
        "    replicas.require_present(change.db, sha256, completion.replicas, completion.as_of)\n",
        "",
        f"{_REPLICAS}completion_that_looked_before_a_replica_was_dropped_is_refused",
    ),
    Mutant.of(
        "created content counts on a replica that was dropped since",
        "coordinator/machine/uploads",
        "    _require_stored(change, new, completion)\n",
        "",
        f"{_MACHINE}/test_stored_content.py::"
        "test_replica_that_was_dropped_since_the_bytes_came_is_no_replica",
    ),
    Mutant.of(
        "created content was looked for when it is recorded",
        "coordinator/machine/uploads",
        "        as_of=content.as_of,\n",
        "        as_of=change.log_index,\n",
        f"{_MACHINE}/test_stored_content.py::"
        "test_replica_that_was_dropped_since_the_bytes_came_is_no_replica",
    ),
    Mutant.of(
        "content on fewer nodes than the write quorum is available",
        "coordinator/machine/contents",
        "if known != len(node_ids) or known < write_quorum:",
        "if known != len(node_ids):",
        f"{_MACHINE}/test_files.py::test_completion_below_the_write_quorum_is_refused",
    ),
    Mutant.of(
        "upload begun anew while a member has its bytes",
        "coordinator/machine/uploads",
        "if unasked and contents.known_nodes(change, unasked):",
        "if False:",
        f"{_MACHINE}/test_upload_places.py::test_upload_does_not_begin_anew_while_a_member_was_not_asked",
    ),
)
CUSTODY = (
    _of(
        "orphans are deleted whatever the log answers",
        "node/custody/orphans.py",
        "if note.sha256 in unclaimed and await",
        "if unclaimed is not None and await",
        f"{_CUSTODY}/test_orphans.py::test_blob_that_is_claimed_before_the_log_hears_that_it_goes_stays",
    ),
    _of(
        "unknown blob is quarantined although the log knows it by now",
        "node/custody/compare.py",
        'if known.get(sha256, "unknown") not in _UNKNOWN or sha256 in finished:',
        "if sha256 in finished:",
        f"{_CUSTODY}/test_unknown_blobs.py::test_unknown_blob_that_the_log_comes_to_know_meanwhile_stays",
    ),
    _of(
        "log not told of what goes to quarantine",
        "node/custody/compare.py",
        '            await self._reporter.report_lost(moved, "missing")\n',
        "",
        f"{_CUSTODY}/test_unknown_blobs.py::"
        "test_completion_that_saw_an_unknown_blob_before_its_quarantine_is_refused",
    ),
    _of(
        "pinned replica dropped",
        "node/custody/collect.py",
        "pinned = must_stay or context.is_affirmed(sha256, PIN_S)",
        "pinned = must_stay",
        f"{_CUSTODY}/test_custody.py::test_pinned_replica_is_spared",
    ),
    _of(
        "replica dropped that is wanted again",
        "node/custody/collect.py",
        "must_stay = replica.wanted or replica.sha256 in finished",
        "must_stay = replica.sha256 in finished",
        f"{_CUSTODY}/test_custody.py::test_replica_that_is_wanted_again_is_spared",
    ),
    _of(
        "replica not retained after an answer was lost",
        "node/custody/collect.py",
        "with suppress(Conflict):",
        "with suppress(ZeroDivisionError):",
        "tests/unit/node/uploads/test_completion.py::"
        "test_replica_is_retained_although_the_answer_to_its_report_was_lost",
    ),
    _of(
        "quarantine emptied at once",
        "node/custody/compare.py",
        ">= QUARANTINE_MS",
        ">= 0",
        f"{_CUSTODY}/test_custody.py::"
        "test_unknown_blob_goes_to_quarantine_after_a_day_and_for_good_after_a_week",
    ),
)
ROOM = (
    _of(
        "pack without live blobs waits for room",
        "node/custody/packing.py",
        "if pack.live_blobs and pack.live_bytes >= room_bytes:",
        "if pack.live_bytes >= room_bytes:",
        f"{_PACKING}pack_without_live_blobs_goes_however_full_the_disk_is",
    ),
    _of(
        "pack rewritten without room for it",
        "node/custody/packing.py",
        "if pack.live_blobs and pack.live_bytes >= room_bytes:",
        "if False:",
        f"{_PACKING}pack_that_has_to_wait_for_room_says_how_much_and_is_rewritten_then",
    ),
    _of(
        "pack of another worker is never sealed",
        "node/packs/store.py",
        "if pack.number == writer.number):\n            self.seal()",
        "if pack.number == writer.number):\n            pass",
        f"{_PACKING}pack_of_another_worker_is_rewritten_once_that_worker_has_sealed_it",
    ),
    Mutant.of(
        "leader without room refuses reports of orphans",
        "coordinator/member/proposing",
        "    commands.ReportOrphans,\n",
        "",
        "tests/unit/coordinator/member/test_driver_group.py::"
        "test_leader_without_room_accepts_what_frees_room_and_what_stops_a_thief",
    ),
    Mutant.of(
        "older snapshot keeps the room of the newer one",
        "coordinator/member/snapshot_making",
        "await self._discard()  # the previous snapshot",
        "pass  # the snapshot before",
        "tests/unit/coordinator/member/test_snapshot_making.py",
    ),
    Mutant.of(
        "rest of a fetch counts against the next",
        "coordinator/storage/snapshot_store",
        "        self._path.unlink(missing_ok=True)  # first",
        "        # first",
        "tests/unit/coordinator/storage/test_snapshot_store.py::"
        "test_what_is_left_of_a_fetch_makes_room_for_the_next",
    ),
)
QUOTAS = (
    Mutant.of(
        "deleted content counts for no quota",
        "coordinator/machine/execution/quotas",
        "if taken_bytes + released_bytes > 2 * quota_bytes:",
        "if False:",
        f"{_QUOTAS}loop_of_upload_and_deletion_ends_at_twice_the_quota",
    ),
    Mutant.of(
        "reservation outlives its upload",
        "coordinator/machine/uploads",
        "    quotas.add_reserved(change.db, row.bucket_id, -quotas.of_upload(change.db, row.file_uuid))\n",
        "",
        f"{_QUOTAS}reservation_is_given_back_at_the_end_of_the_upload",
    ),
    Mutant.of(
        "progress beyond the quota recorded",
        "coordinator/machine/uploads",
        "    quotas.require_room(change.db, bucket_id, more_bytes)\n",
        "",
        f"{_QUOTAS}upload_of_unknown_size_reserves_what_it_holds_or_asks_for",
    ),
    Mutant.of(
        "upload begun beyond the quota",
        "coordinator/machine/files",
        "    quotas.require_room(scope.db, new.bucket_id, (new.size_bytes or 0) - given_back_bytes)\n",
        "    pass\n",
        f"{_QUOTAS}of_three_uploads_of_most_of_a_quota_one_is_admitted",
    ),
    Mutant.of(
        "unfinished uploads of others listed for every reader",
        "coordinator/machine/buckets",
        "if held < Level.ADMIN else ()",
        "if held < Level.READ else ()",
        f"{_PARTS}unfinished_uploads_are_listed_for_admins_of_the_bucket_and_for_their_owners",
    ),
    Mutant.of(
        "partial upload deleted by every writer",
        "coordinator/machine/trash",
        "change, command.caller, command.file_uuid, Level.ADMIN, command.kind, also",
        "change, command.caller, command.file_uuid, Level.WRITE, command.kind, also",
        f"{_PARTS}partial_upload_is_deleted_like_a_file_by_its_owner_and_admins_of_its_bucket",
    ),
    Mutant.of(
        "partial uploads survive the deletion of their user",
        "coordinator/machine/users",
        "    _end_parts(change, command.user_id)\n",
        "",
        f"{_PARTS}partial_uploads_end_with_their_user",
    ),
    Mutant.of(
        "partial uploads survive their user's account",
        "coordinator/machine/users",
        "    if disabled:\n        _end_parts(change, user_id)\n",
        "",
        f"{_PARTS}partial_uploads_end_with_their_user",
    ),
)
RIGHTS = (
    _of(
        "ticket lives on after its key was replaced",
        "ca/usertoken.py",
        "if now_ms >= min(ticket.expires_at_ms, key_ends_at_ms):",
        "if now_ms >= ticket.expires_at_ms:",
        "tests/unit/ca/test_tickets.py::test_ticket_ends_with_the_grace_time_of_its_key",
    ),
    Mutant.of(
        "ticket opens every file of its user",
        "coordinator/rpc/caller_proof",
        "if ticket.file_uuid != asked.file_uuid:",
        "if False:",
        "tests/unit/coordinator/test_user_tokens.py::"
        "test_ticket_opens_the_file_that_it_is_for_and_nothing_else",
    ),
    Mutant.of(
        "link of a disabled user works",
        "coordinator/machine/public_tokens",
        " or maker is None or maker[2]:",
        " or maker is None:",
        f"{_LINKS}token_ends_with_its_time_and_with_what_its_maker_may",
    ),
    Mutant.of(
        "link works for whoever may read the file",
        "coordinator/machine/public_tokens",
        "file = files.permitted(question, maker[0], row, Level.ADMIN)",
        "file = files.permitted(question, maker[0], row, Level.READ)",
        f"{_LINKS}token_ends_when_its_maker_may_only_write",
    ),
    Mutant.of(
        "bucket of a link not compared",
        "coordinator/machine/public_tokens",
        "if row is None or files.row_of(row).bucket_id != query.bucket_id:",
        "if row is None:",
        f"{_LINKS}unknown_token_and_wrong_bucket_are_not_found_even_when_it_has_ended",
    ),
    Mutant.of(
        "rules raised over the nodes' heads",
        "coordinator/member/rules_upgrade",
        "min(RULES, *known.values(), *nodes.values())",
        "min(RULES, *known.values())",
        f"{_RULES}node_of_an_older_version_is_waited_for",
    ),
    Mutant.of(
        "field proposed that older members pass over",
        "metadata/protocol/commands/root",
        "max(self.since, self.rules_of_fields)",
        "self.since",
        f"{_PARTS}commands_wait_for_the_rules_that_have_them",
    ),
)
RECORDS = (
    _of(
        "failed attempts push out what users did",
        "api/access.py",
        "audit.failed.record(",
        "audit.record(",
        "tests/api/test_audit.py::test_failed_attempts_are_apart_and_listed_with_the_rest",
    ),
    Mutant.of(
        "older entries of one log shown before newer ones of the other",
        "runtime/audit_pages",
        "while len(entries) < limit and not any(page.is_cut_off for page in pages):",
        "while len(entries) < limit:",
        f"{_PAGES}search_that_has_not_found_the_end_of_one_log_shows_nothing_older_of_the_other",
    ),
    Mutant.of(
        "place in the log that no entry was taken of forgotten",
        "runtime/audit_pages",
        '            page.place = page.place or f"{name}-{end}"\n',
        "",
        f"{_PAGES}log_of_failed_attempts_is_read_with_the_other_in_the_order_of_time",
    ),
)
CONTENT = (*COMPLETION, *CUSTODY, *ROOM, *QUOTAS, *RIGHTS, *RECORDS)
