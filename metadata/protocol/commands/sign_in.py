"""Commands about identity providers and their people. Apart from `access`: none is older than rules 6.

Tested by tests/unit/coordinator/sign_in/test_flows.py.
"""

from typing import Annotated

from msgspec import Meta

from metadata.model.providers import PersonIdentity, Provider
from metadata.model.records import Caller
from metadata.model.rules import PROVIDERS_SIGN_IN
from metadata.protocol.commands.root import NODES, Command
from runtime.bounds import WRAPPED_BYTES_MAX, Text

Sealed = Annotated[bytes, Meta(max_length=WRAPPED_BYTES_MAX)]


class PutProvider(Command, frozen=True, kw_only=True, tag="put_provider"):
    """Add a provider, or replace its configuration. Admin only. Replies with the ProviderRecord.

    The leader has sealed the secrets of its clients with the cluster key; b"" for a client without one.
    """

    since = PROVIDERS_SIGN_IN
    caller: Caller
    provider: Provider
    secret: Sealed
    command_secret: Sealed


class DeleteProvider(Command, frozen=True, kw_only=True, tag="delete_provider"):
    """Remove a provider. Admin only. Its people stay users; their tokens can no longer be renewed."""

    proposed_by = NODES
    since = PROVIDERS_SIGN_IN
    caller: Caller
    name: Text


class AdmitIdentity(Command, frozen=True, kw_only=True, tag="admit_identity"):
    """A provider has proven who a person is. Replies with the UserRecord, who may sign in if `is_allowed`.

    A person who is not known yet becomes a new user. The groups and the role `admin` that the provider gave
    are replaced. A person who is not allowed any more loses them, and every token. `user_id`: whom it is
    known to be, "" for a new user; a conflict if that has changed.
    """

    since = PROVIDERS_SIGN_IN
    identity: PersonIdentity
    user_id: Text
