"""Whether a provider works: `filestore sso test`, step by step, as the leading coordinator sees it.

Tested by tests/unit/coordinator/sign_in/test_flows.py.
"""

from collections.abc import Iterator
from typing import Final

from ca.errors import FilestoreError
from ca.idtoken import ALGORITHMS
from coordinator.sign_in.provider_client import Endpoints, ProviderClient
from metadata.model.providers import EVERYBODY, Provider
from metadata.protocol.sign_in_calls import TestStep

_PROBE: Final = {  # no provider has given this code, so it answers whether it knows the client
    "grant_type": "authorization_code",
    "code": "filestore-sso-test",
    "redirect_uri": "https://filestore.invalid/",
    "code_verifier": "filestore-sso-test-of-a-client-that-has-no-code",
}


async def examine(client: ProviderClient) -> list[TestStep]:
    """Return the steps, up to the first without which nothing else can work."""
    steps: list[TestStep] = []
    try:
        endpoints = await client.endpoints()
        steps.append(TestStep("configuration", True, f"read from {client.provider.issuer}"))
        keys = await client.keys()
        steps.append(TestStep("keys", True, f"{len(keys)} keys can sign ID tokens"))
    except FilestoreError as error:
        return [*steps, TestStep("keys" if steps else "configuration", False, error.details)]
    steps += _declared(endpoints, client.provider)
    for name in dict.fromkeys(client.provider.client(is_command=each) for each in (False, True)):
        steps.append(await _credential(client, name))
    return [*steps, *_groups(client.provider)]


async def _credential(client: ProviderClient, client_id: str) -> TestStep:
    """Have the provider judge a code that it never gave: it looks at the client first (RFC 6749, 5.2)."""
    endpoints = await client.endpoints()
    step = f"client {client_id}"
    try:
        answer = await client.probe(_PROBE, client.credential(client_id, endpoints))
    except FilestoreError as error:
        return TestStep(step, False, error.details)
    problem = answer.text("error")
    if problem == "invalid_grant":
        return TestStep(step, True, "accepted by the provider")
    if problem in ("invalid_client", "unauthorized_client"):
        return TestStep(step, False, f"rejected ({problem}): compare client and secret with the provider's")
    return TestStep(step, None, f"the provider answered {answer.status} {problem[:64]}")


def _declared(endpoints: Endpoints, provider: Provider) -> Iterator[TestStep]:
    """Yield what the provider says of itself, where that matters."""
    declared = endpoints.fields
    signed = declared.get("id_token_signing_alg_values_supported")
    accepted = [each for each in signed if each in ALGORITHMS] if isinstance(signed, list) else []
    yield TestStep("signatures", bool(accepted), ", ".join(accepted) or "none that is accepted here")
    challenges = declared.get("code_challenge_methods_supported")
    has_pkce = "S256" in challenges if isinstance(challenges, list) else None
    yield TestStep("PKCE", has_pkce, "S256" if has_pkce else "the provider does not say that it checks S256")
    scopes = declared.get("scopes_supported")
    if isinstance(scopes, list) and (unknown := [each for each in provider.scopes if each not in scopes]):
        yield TestStep("scopes", None, f"the provider does not list {', '.join(unknown)}")
    grants = declared.get("grant_types_supported")
    has_refresh = "refresh_token" in grants if isinstance(grants, list) else None
    yield TestStep(
        "renewal",
        has_refresh,
        "the provider gives refresh tokens"
        if has_refresh
        else "the provider does not say that it gives refresh tokens: people may have to sign in again",
    )
    yield TestStep(
        "device grant",
        True if endpoints.device else None,
        "filestore login works without a browser"
        if endpoints.device
        else "none: filestore login needs a browser",
    )


def _groups(provider: Provider) -> Iterator[TestStep]:
    """Yield who may sign in."""
    if EVERYBODY in provider.allowed_groups:
        yield TestStep("groups", None, "everybody whom the provider knows may sign in")
    else:
        yield TestStep("groups", True, f"members of {', '.join(provider.allowed_groups)} may sign in")
