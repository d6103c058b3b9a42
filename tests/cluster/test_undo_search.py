"""Random acts on a real cluster against a model: what can be undone is readable, what was purged is gone.

Files come (often with the content of others), are deleted, purged, protected and restored; snapshots are
taken, files and the whole cluster come back from them; nodes are lost, disks are full.

FILESTORE_UNDO_SEED replays the acts of one seed; FILESTORE_UNDO_STEPS: how many.
"""

import os
import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.drills import drill
from tests.cluster.harness import Cluster
from tests.cluster.undo_world import UndoWorld

TIMEOUT_S = 1800.0  # the purged content alone may take a quarter of an hour
STEPS = int(os.environ.get("FILESTORE_UNDO_STEPS", "120"))
SEEDS = (1, 2, 3)
DOWN_AFTER_S = 3

pytestmark = [pytest.mark.long, pytest.mark.timeout(TIMEOUT_S)]


@pytest.mark.parametrize("number", SEEDS)
def test_what_can_be_undone_is_readable_and_what_was_purged_is_gone(tmp_path: Path, number: int) -> None:
    seed = int(os.environ.get("FILESTORE_UNDO_SEED", number))
    options = ("--down-after", str(DOWN_AFTER_S))
    aside = tmp_path / "aside"
    aside.mkdir()
    with (
        ExitStack() as disks,
        Cluster(tmp_path / "cluster", node_count=4, coordinator_options=options) as cluster,
        ExitStack() as ends,
    ):
        world = UndoWorld(cluster, random.Random(seed), disks, aside)
        ends.callback(world.end)
        world.begin()
        try:
            with drill(f"{STEPS} acts of seed {seed}"):
                world.run(STEPS)
                world.fill_all()
                world.run(STEPS // 4)
            purged_s = world.verdict()
        except AssertionError as failure:
            raise AssertionError(f"FILESTORE_UNDO_SEED={seed}, act {world.steps}: {failure}") from failure
        print(f"seed {seed}: {world.acts_done}; purged content was gone after {purged_s:.0f} s", flush=True)
