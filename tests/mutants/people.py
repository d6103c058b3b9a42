"""Bugs in groups, invitations and sessions."""

from tests.mutants.mutant import Mutant

_PEOPLE = "tests/unit/coordinator/machine/people"
_GROUPS = f"{_PEOPLE}/test_groups.py::test_"
_INVITATIONS = f"{_PEOPLE}/test_invitations.py::test_"
_SESSIONS = f"{_PEOPLE}/test_user_sessions.py::test_"
_RECORDS = "tests/unit/node/base/test_record_store.py::test_"

PEOPLE = (
    Mutant.of(
        "invitation works twice",
        "coordinator/machine/people/invitations",
        "    if invitation.used_at_ms:\n",
        "    if False:\n",
        f"{_INVITATIONS}link_of_a_new_user_works_once",
    ),
    Mutant.of(
        "invitation of an administrator who is one no more",
        "coordinator/machine/people/invitations",
        " or not is_enabled_admin(scope.db, invitation.created_by)",
        "",
        f"{_INVITATIONS}link_ends_with",
    ),
    Mutant.of(
        "ended session gets another token",
        "coordinator/machine/people/user_sessions",
        "Caller(command.user_id, command.generation, session=command.session_id)",
        "Caller(command.user_id, command.generation)",
        f"{_SESSIONS}ended_session_is_rejected_everywhere_and_gets_no_token",
    ),
    Mutant.of(
        "ended session goes on in the same batch",
        "coordinator/machine/people/user_sessions",
        "    change.users.forget(command.user_id)\n",
        "",
        f"{_SESSIONS}end_holds_for_the_next_command_of_the_batch",
    ),
    Mutant.of(
        "record that another session has read is answered",
        "node/base/record_store",
        "place = (caller.subject, caller.generation, caller.session, file_uuid)",
        'place = (caller.subject, caller.generation, "s1", file_uuid)',
        f"{_RECORDS}record_is_answered_to_the_session_that_has_read_it_only",
    ),
    Mutant.of(
        "provider replaces the groups of others",
        "coordinator/machine/people/groups",
        '"DELETE FROM group_members WHERE user_id = ? AND source = ?", (user_id, source)',
        '"DELETE FROM group_members WHERE user_id = ?", (user_id,)',
        f"{_GROUPS}provider_replaces_its_own_groups_and_no_others",
    ),
    Mutant.of(
        "deleted group leaves its permissions",
        "coordinator/machine/people/groups",
        '    withdraw_all(change, principal("group", command.group))\n',
        "",
        f"{_GROUPS}deleted_group_leaves_no_member_and_no_permission",
    ),
    Mutant.of(
        "record that is written back makes a provider's group an administrator's",
        "coordinator/machine/users",
        "[name for name in groups if name in local or name not in given]",
        "list(groups)",
        f"{_GROUPS}group_of_a_provider_is_removed_there_and_stays_the_providers",
    ),
)
