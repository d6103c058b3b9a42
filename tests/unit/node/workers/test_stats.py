"""Worker 0 notices a worker that answers no more."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from node.workers import stats
from node.workers.siblings import Siblings
from node.workers.stats import WorkerNumbers
from runtime.background import Works
from web.app import new_application, serve_on


async def test_worker_that_answers_no_more_hangs_and_one_that_never_did_is_only_being_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "HUNG_S", 0.3)
    monkeypatch.setattr(stats, "LOOK_S", 0.02)
    first, second = Siblings(0, 3, tmp_path / "run"), Siblings(1, 3, tmp_path / "run")
    for each in (first, second):
        await each.start()
    app = new_application(
        WorkerNumbers(CollectorRegistry(), second, Works(CollectorRegistry())).routes(), component="test"
    )
    listener = await serve_on(second.listening_socket(), app, peer=True)
    numbers = WorkerNumbers(CollectorRegistry(), first, Works(CollectorRegistry()))
    hung: asyncio.Queue[int] = asyncio.Queue()
    running = asyncio.create_task(numbers.run(hung.put_nowait))
    async with asyncio.timeout(20):
        await asyncio.sleep(2 * stats.HUNG_S)
        assert hung.empty()
        await listener.close()
        assert await hung.get() == 1
        assert await hung.get() == 1  # nothing took its place
    running.cancel()
    await asyncio.wait([running])
    for each in (first, second):
        await each.close()
