"""Questions about identity providers and their people. Apart from `queries`, which is full.

Tested by tests/unit/coordinator/sign_in/test_flows.py.
"""

from msgspec import Struct

from metadata.model.providers import PersonIdentity
from metadata.model.records import Caller, UserRecord
from metadata.protocol.query_root import Query
from runtime.bounds import Text


class FindProvider(Query, frozen=True, kw_only=True, tag="find_provider"):
    """Admin only: the ProviderRecord of this name; not_found when there is none."""

    caller: Caller
    name: Text


class MatchIdentity(Query, frozen=True, kw_only=True, tag="match_identity"):
    """For members only: the KnownIdentity."""

    identity: PersonIdentity


class FindProviderOfUser(Query, frozen=True, kw_only=True, tag="find_provider_of_user"):
    """For members only: the name of the provider with which a user signs in, "" for none."""

    user_id: Text


class KnownIdentity(Struct, frozen=True):
    """The user that an identity is, None if it is new; whether all that it gives is recorded already."""

    user: UserRecord | None
    is_recorded: bool
