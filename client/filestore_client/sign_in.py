"""Identity providers, and signing in with them.

Tested by tests/sso/test_command.py.
"""

from collections.abc import Sequence
from typing import Literal

import aiohttp
import msgspec

from filestore_client.administration import Resource, given
from filestore_client.base.errors import Unavailable
from filestore_client.base.pages import pages
from filestore_client.base.paths import path_part
from filestore_client.base.records import (
    Provider,
    SignedIn,
    StartedSignIn,
)
from filestore_client.base.retry import connection_trouble

_PROVIDERS = "/api/v1/auth/providers"


class ProviderName(msgspec.Struct, frozen=True, kw_only=True):
    """A provider that people can sign in with: its name, and the label for people."""

    name: str
    label: str


class ProviderStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a test. The outcome is `ok`, `failed` or `note`."""

    step: str
    outcome: str
    details: str


class _Tested(msgspec.Struct, frozen=True):
    steps: list[ProviderStep]


class _Finished(msgspec.Struct, frozen=True):
    pending: bool = False


class Providers(Resource):
    """Identity providers. Admins only, but for their names and signing in, which need no token."""

    async def names(self) -> Sequence[ProviderName]:
        """The providers that people can sign in with."""
        return [each async for each in pages(self._transport, _PROVIDERS, "providers", ProviderName)]

    async def get(self, name: str) -> Provider:
        """One provider, without its secrets."""
        return await self._transport.call("GET", _provider(name), Provider)

    async def put(self, name: str, /, **fields: object) -> Provider:
        """Add a provider, or change one; fields that are absent stay unchanged.

        They are those of `Provider`, with `client_secret` and `command_client_secret`.
        """
        return await self._transport.call("PUT", _provider(name), Provider, body=given(**fields))

    async def delete(self, name: str) -> None:
        """Remove a provider. Its users stay."""
        await self._transport.delete(_provider(name))

    async def test(self, name: str) -> Sequence[ProviderStep]:
        """Have the cluster test a provider, step by step."""
        path = f"{_provider(name)}/test"
        return (await self._transport.call("POST", path, _Tested, repeats=True)).steps

    async def start(
        self, name: str, flow: Literal["console", "command", "device"], *, origin: str = "", port: int = 0
    ) -> StartedSignIn:
        """Start to sign in. `port`: the loopback port of the flow `command`."""
        body = given(flow=flow, origin=origin or None, port=port or None)
        path = f"{_provider(name)}/sign-in"
        return await self._transport.call("POST", path, StartedSignIn, body=body, repeats=True)

    async def finish(
        self, name: str, started: StartedSignIn, *, code: str = "", issuer: str = ""
    ) -> SignedIn | None:
        """Return the token; None in the flow `device` while the person has not confirmed the code.

        Raises Forbidden if the provider or its groups do not allow it, Gone if it took too long.
        """
        body = {"attempt": started.attempt, "state": started.state, "code": code, "issuer": issuer}
        path = f"{_provider(name)}/token"
        answer, _ = await self._transport.answer("POST", path, body=body)
        if self._transport.decode(answer, _Finished, path).pending:
            return None
        return self._transport.decode(answer, SignedIn, path)

    async def renew(self, name: str, renewal: str) -> SignedIn:
        """Renew a sign-in, in one attempt: until another one, the present token is as good as before.

        Raises Forbidden if the provider's session has ended.
        """
        path, body = f"{_provider(name)}/renewal", {"renewal": renewal}
        try:
            async with self._transport.exchange("POST", path, json=body) as answer:
                return self._transport.decode(await answer.read(), SignedIn, path)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(f"No node answered: {connection_trouble(error)}") from error

    async def end(self, name: str, renewal: str) -> None:
        """Have the provider forget the session that a renewal belongs to."""
        path, body = f"{_provider(name)}/sign-out", {"renewal": renewal}
        await self._transport.answer("POST", path, body=body, repeats=True)


def _provider(name: str) -> str:
    return f"{_PROVIDERS}/{path_part(name)}"
