"""The bundle that a running coordinator hands to a machine which joins by a setup token.

It has the cluster key in it. So it goes to nobody but who shows a secret that was made with that key, and
never through another member: whoever asks speaks with this process, over TLS.
"""

import asyncio
import time

import msgspec

from ca.errors import Unauthorized
from ca.setuptoken import is_of_cluster_key
from coordinator.admin.restore import own_bundle
from coordinator.admin.setup import check_signs
from coordinator.runtime.config import CoordinatorConfig, CoordinatorFiles


class Bundles:
    """Those of one coordinator."""

    def __init__(self, files: CoordinatorFiles, config: CoordinatorConfig) -> None:
        self._files = files
        self._config = config

    async def require_of_cluster_key(self, token_id: str, secret: str) -> None:
        """Raises Unauthorized for a token that has ended, or was made with rights in the API alone."""
        key = await asyncio.to_thread(self._files.read_cluster_key)
        if not is_of_cluster_key(key, token_id, secret, at_s=time.time()):
            raise Unauthorized("a join token that was not made on a coordinator")

    async def new(self) -> bytes:
        """A bundle of the present. Raises InvalidRequest when nobody could begin with it."""
        return await asyncio.to_thread(self._made)

    def _made(self) -> bytes:
        bundle = own_bundle(self._files, self._config)
        check_signs(bundle)
        return msgspec.msgpack.encode(bundle)
