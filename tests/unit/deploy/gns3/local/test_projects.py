"""A server that does not run, and whose folder of projects is on this machine."""

from pathlib import Path

import pytest

from ca.errors import Unavailable
from deploy.gns3.local.projects import StoppedServer
from deploy.gns3.server import ServerAddress


async def test_stopped_server_has_no_events(tmp_path: Path) -> None:
    server = StoppedServer(ServerAddress(name="lab", url="http://127.0.0.1:1"), tmp_path)
    with pytest.raises(Unavailable, match="lab does not run"):
        await anext(server.notifications())
