"""Who may propose which command: a node acts for itself, or for a user whose token it shows."""

from metadata.protocol import commands


def test_node_proposes_nothing_in_the_name_of_the_cluster() -> None:
    """A stolen node would make itself an administrator, or have content deleted."""
    for_users = {kind for kind in commands.NODE_COMMANDS if "caller" in kind.__struct_fields__}
    rest = set(commands.NODE_COMMANDS) - for_users - set(commands.OWN_COMMANDS)
    assert rest == {commands.OpenSession}


def test_what_the_leader_checks_seals_or_signs_first_is_proposed_by_it_alone() -> None:
    alone = {commands.AdmitUser, commands.AddTokenKey, commands.PutProvider}
    assert not alone & set(commands.NODE_COMMANDS)
