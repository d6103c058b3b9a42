"""The walk of an upload: how many modules of the node's rooms one request enters, counted with a tracer.

Who mends an upload has to read these. A request that enters more has found another module to read: make it
part of one that is there, or raise the bound and say why.
"""

import asyncio
import base64
import hashlib
import io
import os
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any, Final

import aiohttp
import msgspec
import pytest

from ca.certificates import Authority
from metadata.protocol.commands import CreateFile
from tests.unit.custody_node import Log
from tests.unit.hot_node import token
from tests.unit.logged_nodes import NAMES, logged_nodes
from tests.unit.node.content.test_short_put import serving

ROOT: Final = Path(__file__).resolve().parents[4]
MODULES_MAX: Final = 17  # two of them, the fast path of downloads, are asked first and decline
ROOMS: Final = ("content", "staging", "uploads")  # of the node: what lies below is of all content
ENTRANCE: Final = str(ROOT / "node/content/")  # the request is known by the first of its handlers
CONTENT: Final = os.urandom(9 << 20)  # of several segments, along a chain
SHA256: Final = hashlib.sha256(CONTENT).hexdigest()
UUID: Final = "0199c5a2-0000-7000-8000-000000000001"
PATH: Final = f"/api/v1/files/{UUID}/content"
TUS: Final = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}
METADATA: Final = {"filename": "lab.gns3project", "project_id": "p1"}

_in_request: ContextVar[bool] = ContextVar("in the request", default=False)


class Walk:
    """The modules that the request enters in its task, and in those that this begins."""

    def __init__(self) -> None:
        self.entered = set[str]()
        self.is_traced = False
        self._names: dict[str, str] = {}

    def call(self, frame: FrameType, event: str, _argument: object) -> None:
        """A profile function."""
        if event != "call":
            return
        path = frame.f_code.co_filename
        if path.startswith(ENTRANCE):
            _in_request.set(True)
        is_here = _in_request.get() or threading.current_thread() is not threading.main_thread()
        if not (self.is_traced and is_here):
            return
        name = self._names.get(path)
        if name is None:
            room = Path(path).parent
            is_ours = room.parent == ROOT / "node" and room.name in ROOMS
            name = self._names[path] = f"{room.name}/{Path(path).name}" if is_ours else ""
        if name:
            self.entered.add(name)


@pytest.fixture
def walk() -> Iterator[Walk]:
    """Also in threads, which take the function that is set when they begin."""
    walk = Walk()
    threading.setprofile(walk.call)
    sys.setprofile(walk.call)
    yield walk
    sys.setprofile(None)
    threading.setprofile(None)


def encoded(fields: dict[str, str]) -> str:
    return ",".join(f"{name} {base64.b64encode(value.encode()).decode()}" for name, value in fields.items())


REQUESTS: Final[dict[str, tuple[str, str, dict[str, str]]]] = {
    "a whole PUT": ("PUT", PATH, {}),
    "a PATCH": ("PATCH", PATH, {**TUS, "Upload-Offset": "0", "Upload-Length": str(len(CONTENT))}),
    "a creation with content": (
        "POST",
        "/api/v1/project-files",
        {**TUS, "Upload-Length": str(len(CONTENT)), "Upload-Metadata": encoded(METADATA)},
    ),
}


@pytest.mark.parametrize("what", REQUESTS)
async def test_walk_of_an_upload_enters_few_modules(
    tmp_path: Path,
    peer_authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    walk: Walk,
    what: str,
) -> None:
    method, path, headers = REQUESTS[what]
    propose = Log.propose

    async def placing(self: Log, command: Any, reply_type: Any, **options: Any) -> Any:
        if isinstance(command, CreateFile):
            command = msgspec.structs.replace(command, placement=list(NAMES))
        return await propose(self, command, reply_type, **options)

    monkeypatch.setattr(Log, "propose", placing)
    async with asyncio.timeout(60), logged_nodes(tmp_path, peer_authority) as group, serving(group) as port:
        group.begin(UUID)
        headers = {**headers, "Authorization": f"Bearer {token('admin')}"}
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as session:
            walk.is_traced = True
            async with session.request(method, path, data=io.BytesIO(CONTENT)) as answer:
                told = await answer.read()
            walk.is_traced = False
        assert answer.status in (200, 201, 204), told
        assert len(group.holders(SHA256)) >= 2
    assert len(walk.entered) <= MODULES_MAX, " ".join(sorted(walk.entered))
