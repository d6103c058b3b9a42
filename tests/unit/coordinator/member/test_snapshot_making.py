"""A member makes snapshots for others, in the room that its disk has."""

import asyncio
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coordinator.member.snapshot_making import Hooks, SnapshotMaker
from coordinator.raft.messages import SnapshotMeta
from coordinator.storage import snapshot_store
from coordinator.storage.snapshot_store import SnapshotStore
from tests.unit.snapshot_files import files_of
from tests.unit.state import State

DEADLINE_S = 15.0


async def test_snapshot_gives_its_room_to_a_newer_one_that_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, heard = State(tmp_path / "state.sqlite"), asyncio.Queue[SnapshotMeta | None]()
    told: Any = heard.put_nowait
    hooks = Hooks(told, lambda: told(None), lambda: True, told)
    making = SnapshotMaker("c1", SnapshotStore(tmp_path / "snapshots", state.path), hooks)
    with closing(state.store):
        async with asyncio.timeout(DEADLINE_S):
            state.user("first")
            making.begin()
            assert await heard.get() is not None
            state.user("second")
            with monkeypatch.context() as full:
                full.setattr(snapshot_store, "SNAPSHOT_RESERVE_BYTES", shutil.disk_usage(tmp_path).total)
                making.begin()
                assert await heard.get() is None
                while files_of(tmp_path / "snapshots"):
                    await asyncio.sleep(0.01)
            making._again_at_s = 0.0
            while making.is_busy:
                await asyncio.sleep(0.01)
            making.begin()
            newest = await heard.get()
            assert newest is not None
            assert newest.index == state.log_index
        await making.close()
