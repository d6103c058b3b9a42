"""Opening an upload of any size within a bound: what is in it is hashed in steps, in turn with others.

After a restart a node has to read what it has of an upload. Few such jobs have a thread at a time, and each
step ends one, so a small upload never waits for all of a large one, nor for several.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from ca.errors import Unavailable
from coordinator.model.time_limits import moved
from node.diskio.executor import DiskWorkers
from node.staging.resumed_hash import HashingUnfinished

STEP_BYTES: Final = 256 << 20  # five seconds of a slow disk that others read too, at most
OPEN_S: Final = 15.0  # a client waits so long; what was hashed by then is not hashed again

_T = TypeVar("_T")


async def opened_in_steps(disk: DiskWorkers, step: Callable[[int], _T], *, within_s: float = OPEN_S) -> _T:
    """What `step` returns that hashes so many bytes at most, however often it takes.

    Raises Unavailable when that is not over after `within_s` and a step; the next one goes on there.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + within_s
    while True:
        try:
            return await disk.run_long(step, STEP_BYTES)
        except HashingUnfinished as unfinished:
            moved()
            if loop.time() >= until_s:
                raise Unavailable(
                    "This node still reads what it has of the upload: ask again.", retry_after_s=1
                ) from unfinished
