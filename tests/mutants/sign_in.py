"""Bugs in signing in with providers: who becomes an admin, and where codes and secrets go."""

from tests.mutants.mutant import Mutant

_PROVIDERS = "tests/unit/coordinator/machine/people/test_providers.py::test_"
_SECRETS = "tests/unit/coordinator/sign_in/test_secrets_of_providers.py::test_"
_PROPOSERS = "tests/unit/metadata/protocol/test_proposers.py::test_"
_MOVED = f"{_SECRETS}what_one_issuer_gave_is_sent_to_no_other"
_OWN_CLIENT = f"{_SECRETS}command_has_a_client_and_a_secret_of_its_own"
_PAGE = f"{_SECRETS}person_is_sent_to_a_page_with_a_code_for_half_an_hour"
_LOST = f"{_PROVIDERS}person_who_may_no_longer_sign_in_loses_what_the_provider_gave_and_every_token"
_OTHERS = f"{_PROVIDERS}person_is_no_other_user_of_the_name"

_FLOWS, _CLIENT = "coordinator/sign_in/flows", "coordinator/sign_in/provider_client"
_USERS, _PEOPLE = "coordinator/machine/users", "coordinator/machine/people/providers"
_SAME_ISSUER = "(renewal.provider, renewal.issuer) {} (call.provider, client.provider.issuer):\n"

ADMITTED = (
    Mutant.of(
        "provider takes the role that an administrator gave",
        _USERS,
        "gave_admin=bool(given_roles) and ADMIN_ROLE not in local)",
        "gave_admin=bool(given_roles))",
        f"{_PROVIDERS}provider_takes_back_the_role_that_it_gave_and_no_other",
    ),
    Mutant.of(
        "person who may not sign in gets the role admin",
        _USERS,
        "given_roles = [ADMIN_ROLE] if identity.is_admin and identity.is_allowed else []",
        "given_roles = [ADMIN_ROLE] if identity.is_admin else []",
        _LOST,
    ),
    Mutant.of(
        "tokens outlive the permission to sign in",
        _USERS,
        "    if known is not None and known.allowed and not identity.is_allowed:\n",
        "    if False:\n",
        _LOST,
    ),
    Mutant.of(
        "disabled user signs in",
        _USERS,
        "    if before is not None and before.disabled:\n",
        "    if False:\n",
        f"{_PROVIDERS}disabled_user_is_not_signed_in",
    ),
    Mutant.of(
        "person becomes the user of that name",
        _USERS,
        "(name,)).fetchone() is None:\n            return name\n",
        "(name,)):\n            return name\n",
        _OTHERS,
    ),
    Mutant.of(
        "person outlives the user",
        _USERS,
        '    change.db.execute("DELETE FROM identities WHERE user_id = ?", (command.user_id,))\n',
        "",
        _OTHERS,
    ),
    Mutant.of(
        "provider that moved admits people of the issuer before",
        _PEOPLE,
        "    if row is None or row[0] != identity.issuer:\n",
        "    if row is None:\n",
        f"{_PROVIDERS}answer_of_a_provider_that_was_removed_or_moved_admits_nobody",
    ),
    Mutant.of(
        "groups of a provider that was removed stay",
        _USERS,
        "    if known is not None and known.provider != identity.provider:\n",
        "    if False:\n",
        f"{_PROVIDERS}provider_with_another_name_replaces_the_groups_that_it_gave_before",
    ),
    Mutant.of(
        "node admits people by itself",
        "metadata/protocol/commands/sign_in",
        "    since = PROVIDERS_SIGN_IN\n    identity: PersonIdentity\n",
        "    since = PROVIDERS_SIGN_IN\n    proposed_by = NODES\n    identity: PersonIdentity\n",
        f"{_PROPOSERS}node_proposes_nothing_in_the_name_of_the_cluster",
        f"{_SECRETS}node_admits_nobody_by_itself",
    ),
)
SECRETS = (
    Mutant.of(
        "code sent to another issuer",
        _FLOWS,
        "(attempt.provider, attempt.issuer) != (call.provider, client.provider.issuer)",
        "attempt.provider != call.provider",
        _MOVED,
    ),
    Mutant.of(
        "refresh token sent to another issuer to renew",
        _FLOWS,
        f"        if {_SAME_ISSUER.format('!=')}",
        "        if False:\n",
        _MOVED,
    ),
    Mutant.of(
        "refresh token sent to another issuer to end",
        _FLOWS,
        f"        if {_SAME_ISSUER.format('==')}",
        "        if True:\n",
        _MOVED,
    ),
    Mutant.of(
        "command signs in with the secret of the console",
        _CLIENT,
        "self._secret if is_console else self._command_secret",
        "self._secret",
        _OWN_CLIENT,
    ),
    Mutant.of(
        "secret of a client kept for another one",
        "metadata/model/providers",
        'return f"client secret {self.issuer} {self.client(is_command=is_command)}"',
        'return f"client secret {self.issuer}"',
        _OWN_CLIENT,
    ),
    Mutant.of(
        "person sent to an address that is no page",
        _CLIENT,
        '        self._url(answer, "verification_uri", is_required=True)\n'
        '        self._url(answer, "verification_uri_complete")\n',
        "",
        _PAGE,
    ),
    Mutant.of(
        "code of a device works for a day",
        _FLOWS,
        ", _DEVICE_SECONDS_MAX)\n",
        ", ATTEMPT_MS)\n",
        _PAGE,
    ),
)

SIGN_IN = ADMITTED + SECRETS
