"""Deliberate bugs in restores, in what is admitted after them, and in snapshots at another place.

Each names the quick test that has to catch it.
"""

from tests.mutants.mutant import Mutant

_OFFSITE = "tests/unit/coordinator/admin/test_offsite.py::test_"
_SETUP = "tests/unit/coordinator/admin/test_setup.py::test_"
_RESTORE = "tests/unit/coordinator/admin/test_restore.py::test_"
_RESTORES = "tests/unit/coordinator/machine/test_restores.py::test_"
_ADMISSION = "tests/unit/coordinator/test_admission.py::test_"

OFFSITE = (
    Mutant.of(
        "job removes snapshots of the future before a restore",
        "coordinator/admin/offsite",
        "re.fullmatch(re.escape(sent.prefix) + _SNAPSHOT, name)",
        're.fullmatch(re.escape(sent.cluster) + "-[0-9a-f]{12}-" + _SNAPSHOT, name)',
        f"{_OFFSITE}snapshots_after_a_restore_stay_beside_those_of_the_future_before_it",
    ),
    Mutant.of(
        "job removes what it has just sent",
        "coordinator/admin/offsite",
        "if found and name != sent.name and int(found[1]) <= sent.log_index:",
        "if found:",
        f"{_OFFSITE}what_was_just_sent_is_never_removed_whatever_clocks_and_names_say",
    ),
    Mutant.of(
        "snapshots ordered by the clock",
        "coordinator/admin/offsite",
        "sorted(before)[",
        "sorted(before, key=lambda each: each[1])[",
        f"{_OFFSITE}what_was_just_sent_is_never_removed_whatever_clocks_and_names_say",
    ),
    Mutant.of(
        "copy at another place is not read again",
        "coordinator/admin/offsite",
        "if sha256_of(making, stop) != sent.sha256:",
        "if stop.is_set():",
        f"{_OFFSITE}copy_is_read_again_and_one_that_differs_gets_no_name",
    ),
    Mutant.of(
        "snapshot sent to what is not mounted",
        "coordinator/admin/offsite",
        "if not marker.exists():",
        "if not directory.exists():",
        f"{_OFFSITE}directory_without_a_mark_gets_nothing_as_its_share_may_not_be_mounted",
    ),
    Mutant.of(
        "digest written through a link",
        "coordinator/admin/offsite",
        "write_secret(digest_beside(target), sent.digest)",
        "digest_beside(target).write_bytes(sent.digest)",
        f"{_OFFSITE}links_that_somebody_planted_are_replaced_and_what_they_point_to_stays",
    ),
    Mutant.of(
        "restored cluster goes on in the history of the snapshot",
        "coordinator/admin/offsite",
        "return str(drawn[0]) if drawn else",
        "return str(drawn[0]) if not drawn else",
        f"{_OFFSITE}history_is_that_of_the_root_until_a_restore_draws_another",
    ),
)

CERTIFICATES = (
    Mutant.of(
        "certificate admitted that is older than a known one",
        "coordinator/machine/nodes",
        "newest_ms < not_before_ms <= restored_at_ms",
        "not_before_ms <= restored_at_ms",
        f"{_RESTORES}certificate_of_no_known_node_or_of_another_time_is_refused",
    ),
    Mutant.of(
        "certificate admitted that was issued after the restore",
        "coordinator/machine/nodes",
        "<= restored_at_ms + ISSUED_LATER_MS",
        "<= not_before_ms + restored_at_ms",
        f"{_RESTORES}certificate_of_no_known_node_or_of_another_time_is_refused",
    ),
    Mutant.of(
        "certificate of a revoked node admitted",
        "coordinator/machine/nodes",
        '" FROM restores JOIN nodes ON node_id = :node WHERE revoked = 0"',
        '" FROM restores JOIN nodes ON node_id = :node"',
        f"{_RESTORES}forgotten_certificate_is_refused_after[revoked]",
    ),
    Mutant.of(
        "revoked certificates are no bound for admitted ones",
        "coordinator/machine/nodes",
        "FROM certificates WHERE node_id = :node)",
        "FROM certificates WHERE node_id = :node AND revoked = 0)",
        f"{_RESTORES}certificate_that_was_revoked_before_the_snapshot_stays_revoked",
    ),
    Mutant.of(
        "older certificates live beside an admitted one",
        "coordinator/machine/nodes",
        'UPDATE certificates SET revoked = 1 WHERE node_id = ?", (command.node_id,))\n    _store',
        'UPDATE certificates SET revoked = revoked WHERE node_id = ?", (command.node_id,))\n    _store',
        f"{_RESTORES}forgotten_certificate_is_recorded_and_the_older_ones_of_the_node_end",
    ),
    Mutant.of(
        "certificate of another directory recorded",
        "coordinator/admission",
        "return not contradiction(node.speaker, peer.instance) and self._has_forgotten(peer)",
        "return self._has_forgotten(peer)",
        f"{_ADMISSION}forgotten_certificate_of_another_directory_is_not_recorded",
    ),
)

STATES = (
    Mutant.of(
        "uploads go on in epochs that members have seen",
        "coordinator/machine/cluster",
        "SET epoch = max(epoch + 1, ?)",
        "SET epoch = epoch + 0 * ?",
        f"{_RESTORES}unfinished_uploads_go_on_in_epochs_that_no_forgotten_takeover_has_reached",
    ),
    Mutant.of(
        "join token of the snapshot admits after a restore",
        "coordinator/machine/join_tokens",
        "SET secret_sha256 = ? WHERE uses < uses_max",
        "SET secret_sha256 = ? WHERE uses < 0",
        f"{_RESTORES}tokens_and_links_that_work_once_end_as_they_may_have_been_used_since",
    ),
    Mutant.of(
        "invitation of the snapshot works after a restore",
        "coordinator/machine/people/invitations",
        'DELETE FROM invitations WHERE used_at_ms IS NULL")',
        'DELETE FROM invitations WHERE used_at_ms < 0")',
        f"{_RESTORES}tokens_and_links_that_work_once_end_as_they_may_have_been_used_since",
    ),
    Mutant.of(
        "surplus replicas of the snapshot are deleted",
        "coordinator/machine/cluster",
        "SET doomed_at = NULL WHERE {kept}",
        "SET doomed_at = doomed_at WHERE {kept}",
        f"{_RESTORES}replica_that_was_surplus_is_kept_and_counted_and_what_gc_has_collected_goes",
    ),
    Mutant.of(
        "replicas kept that gc has collected",
        "coordinator/machine/cluster",
        " AND sha256 IN (SELECT sha256 FROM blobs WHERE collected_at IS NULL)",
        "",
        f"{_RESTORES}replica_that_was_surplus_is_kept_and_counted_and_what_gc_has_collected_goes",
    ),
    Mutant.of(
        "intermediate of the bundle ignored",
        "coordinator/admin/restore",
        "newer = _newer_intermediate(files, bundle) or",
        "newer = None or",
        f"{_RESTORE}restore_signs_by_the_intermediate_that_ends_later_the_bundles_or_the_snapshots[True]",
    ),
    Mutant.of(
        "damaged snapshot restored",
        "coordinator/admin/restore",
        "if not matches_digest(copy, named_as=snapshot):",
        "if not matches_digest(copy):",
        f"{_SETUP}snapshot_is_restored_only_as_it_was_written",
    ),
    Mutant.of(
        "coordinator restored under the name of an earlier one",
        "coordinator/admin/restore",
        "    if is_known:\n",
        "    if is_known is None:\n",
        f"{_RESTORE}snapshot_is_not_restored_under_a_name_that_it_alone_knows",
    ),
)

RESTORES = (*OFFSITE, *CERTIFICATES, *STATES)
