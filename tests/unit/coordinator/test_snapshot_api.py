"""Snapshots over HTTP and by the command, at a coordinator that leads alone."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from api.context import API
from coordinator.server import Shell
from deploy.commands.snapshots import snapshot as command
from deploy.coordinator_api import application
from filestore_client import AsyncClient
from filestore_client.base.errors import Conflict, FilestoreError, NotFound
from metadata.protocol.calls import HeartbeatCall
from metadata.protocol.commands import Collect, DeleteFile
from metadata.rpc.client import MetadataClient
from metadata.rpc.view import View
from runtime.background import Works
from runtime.metrics import Metrics
from tests.unit.coordinator.test_service_snapshots import World, world  # noqa: F401
from tests.unit.state import complete, create, create_backup
from web.app import serve
from web.web_access import WebAccess

DEADLINE_S = 60.0
NODES = ["n1", "n2"]
FILE, FULL, NEXT = (f"01936f3e-0000-7000-8000-00000000000{number}" for number in range(3))
NONE = "01936f3e-0000-7000-8000-000000000009"

pytestmark = pytest.mark.timeout(DEADLINE_S + 10)


async def always_ready() -> str:
    return "ready"


class Served:
    """The API of the leader, the client, and the environment of the command."""

    def __init__(self, world: World, client: AsyncClient, environment: dict[str, str]) -> None:  # noqa: F811
        self.world, self.client, self.environment = world, client, environment

    async def run(self, *arguments: str) -> Result:
        """The command, in a thread: it has a loop of its own."""
        return await asyncio.to_thread(CliRunner().invoke, command, arguments, env=self.environment)


@pytest.fixture
async def served(world: World, tmp_path: Path) -> AsyncIterator[Served]:  # noqa: F811
    leader = world.leader
    contexts, config = leader.contexts, leader.files.read_config()
    metadata = MetadataClient(leader.identity, config.members, contexts.client)
    view, metrics = View(metadata, lambda: HeartbeatCall(0, 0, 0)), Metrics("coordinator")
    works = Works(metrics.registry)
    shell = Shell(config, leader.files, metadata, view, metrics, always_ready, WebAccess(), works)
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(world.admin.token)
    url = f"https://127.0.0.1:{leader.record.api_port}"
    environment = {
        "FILESTORE_URL": url,
        "FILESTORE_CA": str(leader.files.root),
        "FILESTORE_TOKEN_FILE": str(token),
    }
    tasks = [asyncio.create_task(metadata.run()), asyncio.create_task(view.run())]
    await view.wait_until_fresh()
    port = leader.record.api_port
    app = application(shell)
    listener = await serve(app, host="127.0.0.1", port=port, ssl_context=contexts.api.listening)
    try:
        root = leader.files.root.read_text()
        async with AsyncClient(url, root_pem=root, token=world.admin.token, deadline_s=10) as client:
            yield Served(world, client, environment)
    finally:
        await listener.close()
        app[API].audit.close()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def stored(served: Served) -> None:
    """A file, and a backup upon another."""
    admin = served.world.admin.unsigned()
    upon = {"backup_type": "incremental", "parent_backup_uuid": FULL}
    for made, sha256 in (
        (create(admin, FILE, placement=NODES), "a" * 64),
        (create_backup(admin, FULL, placement=NODES), "b" * 64),
        (create_backup(admin, NEXT, placement=NODES, filename="next.tar", **upon), "c" * 64),
    ):
        await served.world.apply(made, complete(admin, made.file_uuid, sha256, NODES))


async def delete_all(served: Served) -> None:
    admin = served.world.admin.unsigned()
    for file_uuid in (FILE, NEXT, FULL):
        await served.world.apply(DeleteFile(caller=admin, file_uuid=file_uuid, kind="", trash_ms=0))
    await served.world.apply(Collect(rows_max=100, grace_ms=0))


async def test_files_of_a_snapshot_are_listed_and_come_back(served: Served) -> None:
    await stored(served)
    await served.world.snapshot()
    await delete_all(served)
    (taken,) = [each async for each in served.client.snapshots.list()]
    assert (taken.coordinator_id, taken.hold, taken.files, taken.held_blobs) == ("c1", "held", 3, 3)
    held = (await served.client.cluster.status())["held"]
    assert held == {"snapshots": 1, "blobs": 3, "bytes": 15, "evicted": 0}
    files = [file async for file in served.client.snapshots.files(taken.snapshot_id)]
    assert [(file.file_uuid, file.kind) for file in files] == [
        (FILE, "project"),
        (FULL, "backup"),
        (NEXT, "backup"),
    ]
    with pytest.raises(FilestoreError, match="parent_backup_uuid"):
        await served.client.snapshots.restore_file(taken.snapshot_id, NEXT)
    listed = await served.run("files", taken.snapshot_id, "--bucket", "default", "--json")
    assert [json.loads(line)["file_uuid"] for line in listed.stdout.splitlines()] == [FILE, FULL, NEXT]
    named = await served.run("files", taken.snapshot_id, "--name", "next", "--json")
    assert [json.loads(line)["file_uuid"] for line in named.stdout.splitlines()] == [NEXT]
    done = await served.run("restore-file", taken.snapshot_id, "--all", "--bucket", "default")
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 3), done.output
    live = [file async for file in served.client.backups.list()]
    assert [file.filename for file in live] == ["backup.tar", "next.tar"]
    assert live[1].parent_backup_uuid == live[0].file_uuid
    again = await served.run("restore-file", taken.snapshot_id, FILE)
    assert again.exit_code == 0, again.output
    assert (await served.run("ls")).stdout.splitlines()[1].split()[0] == taken.snapshot_id
    entries = [each async for each in served.client.audit.list(action="restore_snapshot_file")]
    assert [entry.outcome for entry in entries].count("ok") == 4


async def test_what_is_not_in_a_snapshot_or_not_on_the_disks_does_not_come_back(served: Served) -> None:
    await stored(served)
    await served.world.snapshot()
    (taken,) = [each async for each in served.client.snapshots.list()]
    with pytest.raises(NotFound):
        await served.client.snapshots.restore_file(taken.snapshot_id, NONE)
    with pytest.raises(NotFound):
        await served.client.snapshots.restore_file("20260101T000000-1", FILE)
    missing = await served.run("restore-file", taken.snapshot_id, NONE)
    assert f"The snapshot has no file {NONE}" in missing.output + str(missing.exception)
    assert (await served.run("restore-file", taken.snapshot_id)).exit_code == 2
    admin = served.world.admin.unsigned()
    purge = DeleteFile(caller=admin, file_uuid=FILE, kind="", trash_ms=0, for_good=True)
    await served.world.apply(purge, Collect(rows_max=100, grace_ms=0))
    with pytest.raises(Conflict, match="left the disks"):
        await served.client.snapshots.restore_file(taken.snapshot_id, FILE)
