"""Mints tokens of a cluster with the keys on this machine. Shared by setup and `filestore token`.

Tested by tests/cluster/test_setup.py.
"""

import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from ca.certificates import root_digest
from ca.jointoken import secret_digest
from ca.setuptoken import SetupToken, new_setup_token
from ca.tls import read_roots
from coordinator.admin.setup import mint_admin_token
from coordinator.storage.config import CoordinatorFiles
from deploy.setup.plan import url_at
from filestore_client import AsyncClient
from filestore_client.base.errors import Unauthorized

TOKEN_S = 600  # of the admin tokens that are minted here, and written nowhere
TTL_S = 1800  # of a setup token, as of a join token
_APPLIED_S = 30.0  # until a new coordinator knows of the last time that the admin's tokens were revoked
_PAUSE_S = 0.5

T = TypeVar("T")


def run_as_admin(files: CoordinatorFiles, work: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> T:
    """Run `work` at the running coordinator of this directory, with a token of the first admin.

    Raises the errors of the API, AdminDisabled, Unavailable.
    """
    config, root_pem = files.read_config(), read_roots(files.root)
    url = url_at(config.own.address, config.own.api_port)

    async def session() -> T:
        token = mint_admin_token(files.data, ttl_seconds=TOKEN_S)
        async with AsyncClient(url, root_pem=root_pem, token=token) as client:
            return await work(client)

    give_up_at = time.monotonic() + _APPLIED_S
    while True:
        try:
            return uvloop.run(session())
        except Unauthorized:
            if time.monotonic() > give_up_at:
                raise
        time.sleep(_PAUSE_S)


def mint_setup_token(files: CoordinatorFiles, *, ttl_seconds: int = TTL_S) -> SetupToken:
    """Create a token with which one more machine can be set up.

    Raises as `run_as_admin`, and UnsafeSecretFile.
    """
    config = files.read_config()
    token = new_setup_token(
        files.read_cluster_key(),
        root_digest(read_roots(files.root)),
        config.identity,
        config.own.address,
        config.own.api_port,
        ends_at_s=int(time.time()) + ttl_seconds,
    )
    body = {
        "token_id": token.join.token_id,
        "secret_sha256": secret_digest(token.join.secret),
        "ttl_seconds": ttl_seconds,
    }

    async def work(client: AsyncClient) -> None:
        await client.call("POST", "/api/v1/cluster/join-tokens", dict[str, Any], body=body)

    run_as_admin(files, work)
    return token


def mint_node_token(files: CoordinatorFiles, node_id: str) -> str:
    """A join token for one node. Raises as `run_as_admin` does."""

    async def work(client: AsyncClient) -> str:
        return (await client.join_tokens.create(node_id=node_id)).token

    return run_as_admin(files, work)
