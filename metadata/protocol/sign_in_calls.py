"""Calls of members to the leader about signing in with a provider. Apart from `calls`, which is full.

The leader alone talks to providers. What it must remember of a sign-in travels sealed, with the client: the
*attempt* until the person returns from the provider, and the *renewal* with the provider's refresh token.
Secrets are in no repr.

Tested by tests/unit/coordinator/sign_in/test_flows.py.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from metadata.model.providers import SECRET_CHARS_MAX, Provider
from metadata.model.records import Caller
from runtime.bounds import Text

SEALED_CHARS_MAX = 16_384  # with a refresh token, which may be a JWT of some KiB
CODE_CHARS_MAX = 4096
PROVIDER_TIMEOUT_S = 12.0  # of a call that waits for a provider: each request to one has less

Sealed = Annotated[str, Meta(max_length=SEALED_CHARS_MAX)]
Code = Annotated[str, Meta(max_length=CODE_CHARS_MAX)]
Secret = Annotated[str, Meta(max_length=SECRET_CHARS_MAX)]
Flow = Literal["console", "command", "device"]


class _WithoutRepr(Struct, frozen=True):
    """A message with a secret: it is shown as its name alone."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"


class PutProviderCall(_WithoutRepr, frozen=True, tag="put_provider"):
    """An admin adds or changes a provider. Answers a ProviderRecord.

    A secret that is None stays as it is, "" is none.
    """

    caller: Caller
    provider: Provider
    secret: Secret | None
    command_secret: Secret | None


class TestProviderCall(Struct, frozen=True, tag="test_provider"):
    """An admin asks whether a provider works. Answers a list of TestStep."""

    __test__ = False  # for pytest
    caller: Caller
    name: Text


class StartSignInCall(Struct, frozen=True, tag="start_sign_in"):
    """A person wants to sign in. Answers a StartSignInReply. `redirect_uri`: "" in the flow `device`."""

    provider: Text
    flow: Flow
    redirect_uri: Text


class FinishSignInCall(_WithoutRepr, frozen=True, tag="finish_sign_in"):
    """A person has returned from the provider, or waits for it in the flow `device`.

    Answers a SignInReply, None while the person has not decided. `issuer` is the parameter
    `iss` of the provider's answer (RFC 9207), "" if it has none.
    """

    provider: Text
    attempt: Sealed
    state: Text
    code: Code
    issuer: Text


class RenewSignInCall(_WithoutRepr, frozen=True, tag="renew_sign_in"):
    """A token is to be renewed, as long as the provider says so. Answers a SignInReply."""

    provider: Text
    renewal: Sealed


class EndSignInCall(_WithoutRepr, frozen=True, tag="end_sign_in"):
    """A person signs out: the leader has the provider revoke the refresh token. Answers the user id."""

    provider: Text
    renewal: Sealed


class StartSignInReply(_WithoutRepr, frozen=True, kw_only=True):
    """The address where the person signs in. The provider must return `state` with the code.

    In the flow `device`, the person enters `user_code` at `authorization_url`, or opens `complete_url`.
    """

    authorization_url: str
    attempt: str
    state: str
    expires_at_ms: int
    user_code: str = ""
    complete_url: str = ""
    interval_s: int = 0


class SignInReply(_WithoutRepr, frozen=True, kw_only=True):
    """A token for the person. `renewal` is "" if the provider gave nothing to renew it with."""

    token: str
    user_id: str
    expires_at_ms: int
    roles: list[str]
    groups: list[str]
    renewal: str
    renew_at_ms: int


class TestStep(Struct, frozen=True):
    """One step of a test. `is_ok` is None if the step says something without a verdict."""

    __test__ = False
    step: str
    is_ok: bool | None
    details: str


SignInCall = (
    PutProviderCall | TestProviderCall | StartSignInCall | FinishSignInCall | RenewSignInCall | EndSignInCall
)
