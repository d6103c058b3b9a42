"""A proxy to a node that loses answers: what was asked for is done, and nobody is told."""

import asyncio

from tests.cluster.throttle import CHUNK_BYTES, ThrottlingProxy


class LossyProxy(ThrottlingProxy):
    """Breaks every connection instead of passing the next answer on, as often as `losses` says.

    A connection must be there before: what the server sends first on a new one is part of its handshake.
    """

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port, bytes_per_s=1 << 30, is_down=True)
        self.losses = 0
        self.lost = 0

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, throttled: bool
    ) -> None:
        if not throttled:  # the way of the requests
            await super()._copy(source, target, throttled=False)
            return
        while part := await source.read(CHUNK_BYTES):
            if self.losses:
                self.losses -= 1
                self.lost += 1
                self._abort()
                return
            target.write(part)
            await target.drain()
