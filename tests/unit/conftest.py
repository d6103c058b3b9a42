"""Fixtures: a state machine, peers that know each other, a store of uploads, a node that keeps replicas, a
listener on each kind of loop.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
import uvloop

from ca.certificates import Authority, new_intermediate, new_root
from ca.identity import Identity, Role
from ca.keys import new_key
from ca.tls import Credential, client_context, server_context
from node.custody import reporter
from tests.unit.body_shell import PATIENCE, Run, Scenario, Shell
from tests.unit.custody_node import LAYOUTS, Keeper
from tests.unit.peer_nodes import CLUSTER, Node, introduce, running_node
from tests.unit.state import State
from tests.unit.upload_machine import Machine
from web.rate_limits import RequestTimeouts


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


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    """How small blobs lie on a disk. A module or a test that is about one of both says so in its place."""
    return str(request.param)


@pytest.fixture
def keeper(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    monkeypatch.setattr(reporter, "RETRY_S", 0.0)
    keeper = Keeper(tmp_path, packed=layout == "packs")
    yield keeper
    keeper.close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    running = Machine(tmp_path / "data")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def tls(
    peer_authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    key, path = new_key(), tmp_path_factory.mktemp("tls") / "credential.pem"
    leaf = peer_authority.sign_leaf(
        key.public_key(), Identity(CLUSTER, Role.NODE, "n1"), "127.0.0.1", now=datetime.now(UTC)
    )
    Credential(path, peer_authority.root_pem).write(key, leaf.pem)
    return server_context(path), client_context(peer_authority.root_pem)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    made: Callable[[], asyncio.AbstractEventLoop] = request.param
    return made


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def run(
    request: pytest.FixtureRequest,
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
) -> Run:
    """Runs a scenario on each kind of loop, plain and over TLS."""

    def with_shell(scenario: Scenario, patience: RequestTimeouts = PATIENCE) -> None:
        async def main() -> None:
            async with Shell(tls if request.param else None, patience) as shell:
                await scenario(shell)

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())

    return with_shell
