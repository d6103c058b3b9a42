"""Deliberate bugs around permissions, links and quotas. Each names the quick test that has to catch it."""

from tests.mutants.mutant import Mutant

_MACHINE = "tests/unit/coordinator/machine"
_PERMISSIONS = f"{_MACHINE}/test_permissions.py::test_"
_LINKS = f"{_MACHINE}/test_public_tokens.py::test_"
_USERS = f"{_MACHINE}/test_users.py::test_"
_QUOTAS = f"{_MACHINE}/test_quotas.py::test_"
_RULES = f"{_MACHINE}/execution/test_rules.py::test_"

GRANTS = (
    Mutant.of(
        "life of a permission counted in milliseconds",
        "coordinator/machine/execution/change",
        "self.at_ms + ttl_seconds * 1000",
        "self.at_ms + ttl_seconds",
        f"{_PERMISSIONS}life_is_counted_from_the_time_of_the_leader_also_when_it_is_granted_again",
    ),
    Mutant.of(
        "permission that is granted again for a while never ends",
        "coordinator/machine/permissions",
        "(command.caller.subject, expires_at_ms, known[-1])",
        "(command.caller.subject, command.expires_at_ms, known[-1])",
        f"{_PERMISSIONS}life_is_counted_from_the_time_of_the_leader_also_when_it_is_granted_again",
    ),
    Mutant.of(
        "life of a permission sent to a leader that does not know the field",
        "metadata/protocol/commands/access",
        '= {"ttl_seconds": ENDS_ARE_COUNTED}\n    proposed_by = NODES\n    caller: Caller\n    target:',
        "= {}\n    proposed_by = NODES\n    caller: Caller\n    target:",
        f"{_RULES}life_from_the_time_of_the_leader_waits_for_coordinators_that_know_it",
    ),
    Mutant.of(
        "link lives for longer than a month",
        "coordinator/machine/public_tokens",
        "if asked_ms > at_ms + LIFE_MS_MAX:",
        "if False:",
        f"{_LINKS}life_of_a_token_counts_from_the_time_of_the_leader_and_is_bounded",
    ),
    Mutant.of(
        "any name of a group exists",
        "coordinator/machine/users",
        "    if not is_known:\n",
        "    if not is_known and kind == 'user':\n",
        f"{_USERS}group_or_role_exists_while_a_user_has_it",
    ),
    Mutant.of(
        "uploads under way count for no quota",
        "coordinator/machine/execution/quotas",
        "taken_bytes = used_bytes + reserved_bytes + more_bytes",
        "taken_bytes = used_bytes + more_bytes",
        f"{_QUOTAS}of_three_uploads_of_most_of_a_quota_one_is_admitted",
    ),
    Mutant.of(
        "deleted content on disks counts for no quota",
        "coordinator/machine/execution/quotas",
        "if taken_bytes + released_bytes > 2 * quota_bytes:",
        "if False:",
        f"{_QUOTAS}loop_of_upload_and_deletion_ends_at_twice_the_quota",
    ),
    Mutant(
        "existence of a user not asked for before it is changed",
        (
            (
                "api/users.py",
                '    if query_flag(request, "existing"):\n',
                "    if False:\n",
            ),
        ),
        ("tests/api/test_users.py::test_user_must_exist_if_that_is_wanted",),
    ),
)
