"""Renew a node's certificate over its own connection. Shared by a node that runs and one that moves.

This happens at two thirds of its life, with a new key each time. A certificate that has expired while the
node was off is still accepted for this one call. So is one that is not valid yet, because the clock of the
coordinator that signed it ran ahead.
"""

import asyncio
import logging
from collections.abc import Callable

from ca.certificates import check_leaf_matches
from ca.csr import new_csr
from ca.identity import Identity
from ca.keys import new_key
from metadata.rpc.client import MetadataClient
from metadata.rpc.tls_contexts import MemberContexts
from runtime.background import Pause, Work
from runtime.clock import now_ms

LOOK_S = 600.0  # how often the due time is compared: a machine that slept notices soon
RETRY_S = 60.0  # after a failure; two days of them are left before the certificate ends, as a rule

_log = logging.getLogger(__name__)


async def keep_renewed(
    metadata: MetadataClient,
    contexts: MemberContexts,
    identity: Identity,
    address: str,
    *,
    on_renewed: Callable[[], None],
) -> None:
    """Renew forever; failures are logged and retried. `on_renewed`: called when a new one is on disk."""

    async def look() -> Pause:
        renewal = contexts.credential.renewal()
        if renewal.is_due(now_ms()):
            await renew(metadata, contexts, identity, address)
            on_renewed()
            _log.info("the certificate was renewed")
            return Pause(LOOK_S)
        return Pause(min(LOOK_S, max(0.0, (renewal.due_at_ms - now_ms()) / 1000)))

    trouble = "cannot renew the certificate"
    await Work("renewal", look, retry_s=RETRY_S, trouble=trouble).run()


async def renew(metadata: MetadataClient, contexts: MemberContexts, identity: Identity, address: str) -> None:
    """One renewal: ask, check what came, put it on disk in one rename, use it.

    Raises FilestoreError, OSError.
    """
    key = new_key()
    reply = await metadata.renew(new_csr(key, identity, address))
    check_leaf_matches(reply.node_cert, key, contexts.credential.root_pem, identity=identity)
    await asyncio.to_thread(contexts.credential.write, key, reply.node_cert)
    contexts.reload()
