"""Deliberate bugs in the trash, in protection, and in what snapshots hold.

Each names the quick test that has to catch it. Those of SEARCHED have to be found by the random search.
"""

from tests.mutants.mutant import Mutant

_SNAPSHOTS = "tests/unit/coordinator/machine/test_snapshots.py::test_"
_TRASH = "tests/unit/coordinator/machine/test_trash.py::test_"
_PROTECTION = "tests/unit/coordinator/machine/test_protection.py::test_"
_SEARCH = (
    "tests/unit/coordinator/machine/test_undo_model.py"
    "::test_nothing_is_lost_that_the_trash_or_a_snapshot_keeps_and_nothing_stays_longer"
)

FOUND_BY_NAME = (
    Mutant.of(
        "hold of a snapshot forgotten while other files have the content",
        "coordinator/machine/blobs",
        "elif _is_last_file(change.db, sha256) and holds.forget(change.db, sha256):",
        "elif holds.forget(change.db, sha256):",
        f"{_SNAPSHOTS}content_of_a_snapshot_stays_if_another_file_with_it_is_deleted_for_good",
    ),
    Mutant.of(
        "content deleted for good stays in snapshots",
        "coordinator/machine/blobs",
        "return bool(files == 1)",
        "return bool(files == 0)",
        f"{_SNAPSHOTS}content_that_is_deleted_for_good_is_not_held",
    ),
    Mutant.of(
        "snapshot under way holds nothing",
        "coordinator/machine/execution/holds",
        "(log_index IS NULL OR log_index >= ?)",
        "log_index >= ?",
        f"{_SNAPSHOTS}content_that_is_deleted_while_a_snapshot_is_made_is_held",
    ),
    Mutant.of(
        "content leaves with an older snapshot than the newest that has it",
        "coordinator/machine/execution/holds",
        "elif earlier[0] < found[0]:",
        "elif earlier[0] > found[0]:",
        f"{_SNAPSHOTS}content_that_is_held_is_held_for_a_newer_snapshot_of_another_file_too",
    ),
    Mutant.of(
        "hold of a snapshot ends with the one before it",
        "coordinator/machine/snapshots",
        'WHERE h.snapshot <"',
        'WHERE h.snapshot <="',
        f"{_SNAPSHOTS}content_of_a_kept_snapshot_stays_for_its_time_and_goes_then",
    ),
    Mutant.of(
        "content of an evicted snapshot waits for the grace",
        "coordinator/machine/snapshots",
        "is_urgent=hold == EVICTED",
        "is_urgent=hold == HELD",
        f"{_SNAPSHOTS}oldest_snapshot_is_evicted_first_and_its_content_leaves_soon",
    ),
    Mutant.of(
        "restored state does not hold what its snapshot refers to",
        "coordinator/machine/cluster",
        '"UPDATE kept_snapshots SET log_index = ? WHERE log_index IS NULL", (change.log_index,)',
        '"UPDATE kept_snapshots SET log_index = 0 WHERE log_index IS NULL"',
        f"{_SNAPSHOTS}restored_state_holds_what_the_snapshot_itself_refers_to",
    ),
    Mutant.of(
        "protected content deleted",
        "coordinator/machine/trash",
        "if facts.protected_until_ms and row.blob_sha256:",
        "if facts.protected_until_ms and not row.blob_sha256:",
        f"{_PROTECTION}protected_file_is_deleted_by_nobody_until_expire_ends_the_protection",
    ),
    Mutant.of(
        "protection overridden by every user",
        "coordinator/machine/execution/protection",
        "    if not user.is_admin:\n",
        "    if not user.user_id:\n",
        f"{_PROTECTION}only_an_admin_of_the_cluster_overrides",
    ),
    Mutant.of(
        "file leaves the trash early",
        "coordinator/machine/trash",
        "due_ms = change.at_ms + stays_ms\n",
        "due_ms = change.at_ms + stays_ms // 2\n",
        f"{_TRASH}file_goes_for_good_when_its_time_is_over_and_not_before",
    ),
    Mutant.of(
        "newest of the trash goes first",
        "coordinator/machine/trash",
        "ORDER BY t.sequence LIMIT ?",
        "ORDER BY t.sequence DESC LIMIT ?",
        f"{_TRASH}oldest_go_first_when_disks_are_almost_full",
    ),
    Mutant.of(
        "parent of another user restored with a backup",
        "coordinator/machine/trash",
        "        chain.append(_require(change, user, parent))\n",
        "        found = _find(change.db, parent)\n        assert found\n        chain.append(found)\n",
        f"{_TRASH}parent_of_another_user_comes_back_only_for_who_may_restore_it",
    ),
)

# What the random search has to find.
SEARCHED = (
    Mutant.of(
        "hold forgotten with another file's content, found by the search",
        "coordinator/machine/blobs",
        "elif _is_last_file(change.db, sha256) and holds.forget(change.db, sha256):",
        "elif holds.forget(change.db, sha256):",
        _SEARCH,
    ),
    Mutant.of(
        "file in the trash is not held",
        "coordinator/machine/trash",
        "    holds.begin(change, row.blob_sha256, row.sequence)\n",
        "",
        _SEARCH,
    ),
    Mutant.of(
        "retention that ends takes content from snapshots",
        "coordinator/machine/files",
        "row.sequence, for_good=for_good)",
        "row.sequence, for_good=True)",
        _SEARCH,
    ),
    Mutant.of(
        "trash beyond a quota takes content from snapshots",
        "coordinator/machine/trash",
        "_end(change, sequence, sha256, bucket_id, is_urgent=False)\n        excess",
        "_end(change, sequence, sha256, bucket_id, is_urgent=True)\n        excess",
        _SEARCH,
    ),
    Mutant.of(
        "end of the trash takes content from snapshots",
        "coordinator/machine/trash",
        "_end(change, sequence, sha256, bucket_id, is_urgent=False)\n            gone",
        "_end(change, sequence, sha256, bucket_id, is_urgent=True)\n            gone",
        _SEARCH,
    ),
    Mutant.of(
        "trash that shrinks leaves content to snapshots",
        "coordinator/machine/trash",
        "sha256, bucket_id, is_urgent=True)\n        gone += 1",
        "sha256, bucket_id, is_urgent=False)\n        gone += 1",
        _SEARCH,
    ),
    Mutant.of(
        "purged content waits for the grace",
        "coordinator/machine/trash",
        "    if is_last and is_urgent:\n",
        "    if is_last and not is_urgent:\n",
        _SEARCH,
    ),
    Mutant.of(
        "retention does not end the time in the trash",
        "coordinator/machine/trash",
        "due_ms = min(due_ms, facts.retained_until_ms)",
        "due_ms = max(due_ms, facts.retained_until_ms)",
        _SEARCH,
    ),
    Mutant.of(
        "expiry ignores protection",
        "coordinator/machine/expiry",
        "if end_ms := protection.until_ms(change.db, file.sequence):",
        "if (end_ms := protection.until_ms(change.db, file.sequence)) < 0:",
        _SEARCH,
    ),
    Mutant.of(
        "content is held for the oldest snapshot",
        "coordinator/machine/execution/holds",
        '" ORDER BY sequence DESC LIMIT 1"',
        '" ORDER BY sequence LIMIT 1"',
        _SEARCH,
    ),
    Mutant.of(
        "snapshot holds nothing that came while it was made",
        "coordinator/machine/snapshots",
        "log_index = command.log_index if command.snapshot_id else command.sequence",
        "log_index = command.sequence",
        _SEARCH,
    ),
    Mutant.of(
        "restored state holds nothing that came while its snapshot was made",
        "coordinator/machine/cluster",
        '"UPDATE kept_snapshots SET log_index = ? WHERE log_index IS NULL", (change.log_index,)',
        '"UPDATE kept_snapshots SET log_index = sequence WHERE log_index IS NULL"',
        _SEARCH,
    ),
    Mutant.of(
        "snapshots hold content longer than a shorter setting says",
        "coordinator/machine/snapshots",
        'WHERE hold = ? AND held_until_ms > ?"',
        'WHERE hold = ? AND held_until_ms < ?"',
        _SEARCH,
    ),
    Mutant.of(
        "newest snapshots are evicted",
        "coordinator/machine/snapshots",
        "log_index IS NOT NULL AND sequence <= ?",
        "log_index IS NOT NULL AND sequence >= ?",
        _SEARCH,
    ),
    Mutant.of(
        "snapshots are evicted without need",
        "coordinator/machine/snapshots",
        "if command.evict and not _is_any_over(db):",
        "if not _is_any_over(db):",
        _SEARCH,
    ),
    Mutant.of(
        "snapshot that failed holds what comes later",
        "coordinator/machine/snapshots",
        "    close_unfinished(db)\n",
        "",
        _SEARCH,
    ),
)

UNDO = (*FOUND_BY_NAME, *SEARCHED)
