"""Fixtures: a state machine, peers that know each other, a store of uploads, a node that keeps replicas."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ca.certificates import Authority, new_intermediate, new_root
from node import reporting
from tests.unit.custody_node import Keeper
from tests.unit.peer_nodes import CLUSTER, Node, introduce, running_node
from tests.unit.state import State
from tests.unit.upload_machine import Machine


@pytest.fixture
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[State]:
    """A state machine of a cluster with the nodes that the module names (`NODES`), or three."""
    made = State(tmp_path / "state.sqlite")
    made.nodes(*getattr(request.module, "NODES", ("n1", "n2", "n3")))
    yield made
    made.store.close()


@pytest.fixture(scope="session")
def peer_authority() -> Authority:
    now = datetime.now(UTC)
    root_pem, root_key = new_root(CLUSTER, now=now)
    return Authority(root_pem, *new_intermediate(root_pem, root_key, CLUSTER, now=now))


@pytest.fixture
async def nodes(tmp_path: Path, peer_authority: Authority) -> AsyncIterator[list[Node]]:
    async with AsyncExitStack() as stack:
        started = [
            await stack.enter_async_context(running_node(name, tmp_path / name, peer_authority))
            for name in ("n1", "n2", "n3")
        ]
        introduce(started)
        yield started


@pytest.fixture
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    monkeypatch.setattr(reporting, "RETRY_S", 0.0)
    keeper = Keeper(tmp_path)
    yield keeper
    keeper.close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    running = Machine(tmp_path / "data")
    yield running
    running.stop()
