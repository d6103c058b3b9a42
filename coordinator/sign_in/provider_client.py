"""One identity provider as the leader knows it: its endpoints, its keys, and what it answers to a client.

Endpoints and keys are kept for MEMORY_S. A token that is signed with an unknown key has the keys fetched
again, at most a few times a minute: providers replace their keys, and any token can name a key.

Tested by tests/unit/coordinator/sign_in/test_flows.py.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ca.errors import FilestoreError, Forbidden, Gone, InvalidRequest
from ca.idtoken import Expected, UnknownSigner, usable_keys, verify_id_token
from coordinator.sign_in.provider_http import (
    ClientCredential,
    ProviderAnswer,
    ProviderHttp,
    provider_context,
)
from metadata.model.providers import Provider, ProviderUnavailable, check_provider_url
from web.rate_limits import TokenBuckets

MEMORY_S: Final = 600.0
REFETCH_BURST: Final = 4
REFETCH_PER_S: Final = 1 / 30
DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"  # RFC 8628, 3.4
_PENDING: Final = frozenset({"authorization_pending", "slow_down"})


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The metadata of a provider (OpenID Connect Discovery 1.0, RFC 8414), "" for what it does not have."""

    authorization: str
    token: str
    jwks: str
    userinfo: str
    device: str
    revocation: str
    has_issuer_parameter: bool  # it names itself when it redirects (RFC 9207)
    secret_in_body: bool
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that the token endpoint gave. They never leave this process unsealed."""

    id_token: str
    access_token: str
    refresh_token: str

    def __repr__(self) -> str:
        return "Tokens(...)"


class ProviderClient:
    """A provider. `secret` is that of its client, `command_secret` that of the command's client."""

    def __init__(
        self,
        provider: Provider,
        http: ProviderHttp,
        *,
        secret: str,
        command_secret: str,
        is_development: bool,
    ) -> None:
        self.provider = provider
        self._http = http
        self._secret = secret
        self._command_secret = command_secret
        self._is_development = is_development
        self._endpoints: tuple[Endpoints, float] | None = None
        self._keys: tuple[list[Mapping[str, object]], float] | None = None
        self._refetches = TokenBuckets(burst=REFETCH_BURST, per_s=REFETCH_PER_S)

    @classmethod
    async def new(
        cls, provider: Provider, *, secret: str, command_secret: str, is_development: bool
    ) -> "ProviderClient":
        """Return a client that knows nothing of the provider yet."""
        context = await asyncio.to_thread(provider_context, provider.ca_pem)
        http = ProviderHttp(context, is_development=is_development)
        return cls(
            provider, http, secret=secret, command_secret=command_secret, is_development=is_development
        )

    async def endpoints(self) -> Endpoints:
        """Return the endpoints. Raises ProviderUnavailable."""
        if self._endpoints is None or time.monotonic() > self._endpoints[1]:
            url = f"{self.provider.issuer.rstrip('/')}/.well-known/openid-configuration"
            answer = await self._http.get(url)
            self._endpoints = self._read_endpoints(answer), time.monotonic() + MEMORY_S
        return self._endpoints[0]

    async def keys(self, *, again: bool = False) -> list[Mapping[str, object]]:
        """Return the keys that sign ID tokens. `again`: those that are known were not enough.

        Raises ProviderUnavailable.
        """
        is_known = self._keys is not None and time.monotonic() <= self._keys[1]
        if self._keys is None or not is_known or (again and self._refetches.try_take("") <= 0):
            answer = await self._http.get((await self.endpoints()).jwks)
            found = usable_keys(answer.fields.get("keys"))
            if answer.status != 200 or not found:
                raise ProviderUnavailable(f"The provider shows no keys (status {answer.status}).")
            self._keys = found, time.monotonic() + MEMORY_S
        return self._keys[0]

    async def verify(self, id_token: str, expected: Expected) -> Mapping[str, object]:
        """Return the claims of an ID token. Raises InvalidIdToken, ProviderUnavailable."""
        try:
            return verify_id_token(id_token, await self.keys(), expected)
        except UnknownSigner:
            return verify_id_token(id_token, await self.keys(again=True), expected)

    async def exchange(self, client_id: str, form: Mapping[str, str]) -> Tokens | None:
        """Return what the token endpoint gives for a code, a refresh token or a device code.

        None while a person has not decided about a device. Raises Forbidden if the provider or the person
        declines, Gone if the code has expired, ProviderUnavailable.
        """
        endpoints = await self.endpoints()
        answer = await self._http.post(endpoints.token, form, self.credential(client_id, endpoints))
        if answer.status == 200:
            return Tokens(answer.text("id_token"), answer.text("access_token"), answer.text("refresh_token"))
        if answer.text("error") in _PENDING:
            return None
        raise refusal(answer)

    async def start_device(self, client_id: str, scope: str) -> ProviderAnswer:
        """Return the device code, the user code and where it is entered. Raises as `exchange` does."""
        endpoints = await self.endpoints()
        if not endpoints.device:
            raise Forbidden("The provider has no device grant. Sign in where there is a browser.")
        client = self.credential(client_id, endpoints)
        # RFC 8628, 3.1: the client is named in the form, too.
        answer = await self._http.post(endpoints.device, {"scope": scope, "client_id": client_id}, client)
        if answer.status != 200:
            raise refusal(answer)
        self._url(answer, "verification_uri", is_required=True)
        self._url(answer, "verification_uri_complete")
        if not answer.text("device_code") or not answer.text("user_code"):
            raise ProviderUnavailable("The provider gave no code for the device.")
        return answer

    async def userinfo(self, access_token: str, subject: str) -> Mapping[str, object]:
        """Return the claims that the provider tells apart from the ID token, for the same subject only.

        Raises ProviderUnavailable, Forbidden.
        """
        endpoints = await self.endpoints()
        if not endpoints.userinfo or not access_token:
            return {}
        answer = await self._http.get(endpoints.userinfo, bearer=access_token)
        if answer.status != 200:
            raise ProviderUnavailable(f"The provider tells nothing of the person (status {answer.status}).")
        if answer.fields.get("sub") != subject:  # Core 1.0, 5.3.2
            raise Forbidden("The provider told of another person than the one who signs in.")
        return answer.fields

    async def revoke(self, client_id: str, refresh_token: str) -> None:
        """Have the provider forget a refresh token (RFC 7009), if it can. Raises ProviderUnavailable."""
        endpoints = await self.endpoints()
        if endpoints.revocation:
            form = {"token": refresh_token, "token_type_hint": "refresh_token"}
            await self._http.post(endpoints.revocation, form, self.credential(client_id, endpoints))

    async def probe(self, form: Mapping[str, str], client: ClientCredential) -> ProviderAnswer:
        """Return the answer of the token endpoint as it is. Raises ProviderUnavailable."""
        return await self._http.post((await self.endpoints()).token, form, client)

    def credential(self, client_id: str, endpoints: Endpoints) -> ClientCredential:
        """Return the credential of one of the two clients."""
        is_console = client_id == self.provider.client_id
        secret = self._secret if is_console else self._command_secret
        return ClientCredential(client_id, secret, in_body=endpoints.secret_in_body)

    def _read_endpoints(self, answer: ProviderAnswer) -> Endpoints:
        """Check what the provider says of itself. Raises ProviderUnavailable."""
        if answer.status != 200 or not answer.fields:
            raise ProviderUnavailable(
                f"There is no provider at the issuer: its configuration has the status {answer.status}."
            )
        if answer.fields.get("issuer") != self.provider.issuer:  # Discovery 1.0, 4.3
            raise ProviderUnavailable(
                f"The provider calls itself {answer.text('issuer')[:200]!r}, which is not the issuer."
            )
        methods = answer.fields.get("token_endpoint_auth_methods_supported")
        known = methods if isinstance(methods, list) else ["client_secret_basic"]
        return Endpoints(
            authorization=self._url(answer, "authorization_endpoint", is_required=True),
            token=self._url(answer, "token_endpoint", is_required=True),
            jwks=self._url(answer, "jwks_uri", is_required=True),
            userinfo=self._url(answer, "userinfo_endpoint"),
            device=self._url(answer, "device_authorization_endpoint"),
            revocation=self._url(answer, "revocation_endpoint"),
            has_issuer_parameter=answer.fields.get("authorization_response_iss_parameter_supported") is True,
            secret_in_body="client_secret_basic" not in known and "client_secret_post" in known,
            fields=answer.fields,
        )

    def _url(self, answer: ProviderAnswer, name: str, *, is_required: bool = False) -> str:
        url = answer.text(name)
        if not url and not is_required:
            return ""
        try:
            return check_provider_url(url, name, is_development=self._is_development)
        except InvalidRequest as error:
            raise ProviderUnavailable(f"The provider is not usable: {error.details}.") from error


def refusal(answer: ProviderAnswer) -> FilestoreError:
    """Return the error for an answer that is none of success."""
    problem = answer.text("error")
    if problem == "access_denied":
        return Forbidden("The sign-in was declined at the provider.")
    if problem == "expired_token":
        return Gone("The code has expired. Start again.")
    if problem == "invalid_grant":
        return Forbidden("The provider accepts this code or session no longer. Sign in again.")
    if answer.status >= 500 or answer.status == 429 or not problem:
        return ProviderUnavailable(f"The provider cannot do this now (status {answer.status}).")
    # Our configuration is wrong: an administrator must see how. These are names of RFC 6749, 5.2.
    name = "".join(c for c in problem[:64] if c.isalnum() or c == "_")
    return Forbidden(
        f"The provider rejects this cluster: {name}. An administrator runs `filestore sso test`."
    )
