"""Look for damaged pages and indexes of the database continuously. Apart: a separate task.

A page that changed is found in the next round of all pages. Damage from before this process is found at its
start if a page is malformed, here if an index contradicts its table, and by the digests of the members if a
row differs from the others.

Tested by tests/cluster/test_state_damage.py.
"""

import asyncio
from functools import partial
from typing import Final

from coordinator.storage.state_store import Store
from runtime.background import Pause, Work, run_all
from runtime.stopping import run_in_thread

SLICE_PAUSE_S: Final = 0.03  # between slices of 1 MiB: 1.3 GiB, a million files, take 45 s
ROUND_S: Final = 10.0  # from the end of a round to the next
# From one comparison of all tables with their indexes to the next: four minutes of a processor.
INDEXES_S: Final = 86_400.0


async def check_state(store: Store) -> None:
    """Check until cancelled. Raises StateDamaged."""
    await run_all(
        Work("pages of the state", partial(_compare_pages, store), fails=()),
        Work("indexes of the state", partial(_compare_indexes, store), every_s=INDEXES_S, fails=()),
    )


async def _compare_pages(store: Store) -> Pause:
    is_round = await asyncio.to_thread(store.compare_pages)
    return Pause(ROUND_S if is_round else SLICE_PAUSE_S)


async def _compare_indexes(store: Store) -> None:
    for table in store.tables():
        await run_in_thread(partial(store.compare_indexes, table))
