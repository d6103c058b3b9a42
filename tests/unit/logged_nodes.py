"""Three nodes that take uploads: real peers and real files, with the real state machine for coordinators."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ca.certificates import Authority
from ca.usertoken import public_jwk
from metadata.model.records import UploadRecord
from metadata.protocol.queries import GetUpload
from tests.unit.custody_node import Log
from tests.unit.hot_node import KEY
from tests.unit.peer_nodes import Node, introduce, running_node
from tests.unit.state import ADMIN, State, create

NAMES = ("n1", "n2", "n3")


@dataclass
class LoggedNodes:
    """`state` says what a log of theirs would. Small blobs come into packs."""

    state: State
    nodes: list[Node]

    def begin(self, file_uuid: str) -> UploadRecord:
        """A new upload that n1 holds, as its node begins with it."""
        self.state.done(create(ADMIN, file_uuid, placement=list(NAMES)))
        return self.upload(file_uuid)

    def upload(self, file_uuid: str) -> UploadRecord:
        """As it stands now."""
        found = self.state.ask(GetUpload(caller=ADMIN, file_uuid=file_uuid))
        return msgspec.convert(found, type=UploadRecord)

    def holders(self, sha256: str) -> list[str]:
        """Those who have a blob on their disk."""
        return [node.services.node_id for node in self.nodes if node.services.blobs.has(sha256)]


@asynccontextmanager
async def logged_nodes(directory: Path, authority: Authority) -> AsyncIterator[LoggedNodes]:
    """They know each other, and the tokens of `tests/unit/hot_node.py`."""
    state = State(directory / "state")
    state.nodes(*NAMES)
    async with AsyncExitStack() as stack:
        stack.callback(state.store.close)
        nodes = [
            await stack.enter_async_context(running_node(name, directory / name, authority, Log(state)))
            for name in NAMES
        ]
        introduce(nodes, token_keys=[public_jwk(KEY)])
        for node in nodes:
            node.services.blobs.packed.takes_new = lambda: True
        yield LoggedNodes(state, nodes)
