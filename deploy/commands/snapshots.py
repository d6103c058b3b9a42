"""`filestore snapshot`: snapshots of the metadata, and files that come back from one."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import click

from deploy.base.connection import Connection, connection_options
from deploy.base.failures import FAILURES, print_failures
from deploy.base.lookup import find_bucket, is_uuid
from deploy.base.output import json_option, moment, print_records, size
from deploy.base.own_files import UserPath
from deploy.base.printed import printable_name
from filestore_client import AsyncClient
from filestore_client.base.errors import NotFound
from filestore_client.base.records import Snapshot, SnapshotFile
from runtime.wording import counted

_SNAPSHOTS: Final[Mapping[str, Callable[[Snapshot], object]]] = {
    "snapshot": lambda each: each.snapshot_id,
    "taken": lambda each: moment(each.taken_at),
    "on": lambda each: each.coordinator_id if each.is_readable else f"{each.coordinator_id} (removed)",
    "files": lambda each: str(each.files),
    "size": lambda each: size(each.size_bytes),
    "content": lambda each: f"until {moment(each.held_until)}" if each.hold == "held" else each.hold,
    "keeps": lambda each: size(each.held_bytes),
    "sent to": lambda each: each.sent_to,
}
_FILES: Final[Mapping[str, Callable[[SnapshotFile], object]]] = {
    "file_uuid": lambda file: file.file_uuid,
    "kind": lambda file: file.kind,
    "size": lambda file: size(file.size_bytes),
    "created": lambda file: moment(file.created_at),
    "owner": lambda file: file.owner_id,
    "bucket": lambda file: file.bucket_name,
    "name": lambda file: _name(file),
}
_snapshot = click.argument("snapshot_id", metavar="SNAPSHOT")
_bucket = click.option("--bucket", default="", help="Only files of this bucket, by its name then or its id.")


@click.group()
def snapshot() -> None:
    """Snapshots of the metadata, and files in them.

    For admins. The job `snapshot` takes one each day. The content of its files stays on the disks for some
    days, also if they are deleted. `filestore coordinator restore` makes a whole cluster from one.
    """


@snapshot.command()
@json_option
@connection_options
def ls(connection: Connection, as_json: bool) -> None:
    """List the snapshots.

    Each is on the coordinator that is named. If that was removed, only the whole cluster can be restored from
    the snapshot. "keeps" is the size of deleted files whose content leaves the disks with this snapshot.
    """

    async def work(client: AsyncClient) -> list[Snapshot]:
        return [each async for each in client.snapshots.list()]

    print_records(connection.run(work), _SNAPSHOTS, as_json=as_json, empty="There are no snapshots.")


@snapshot.command()
@_snapshot
@_bucket
@click.option("--name", default="", help="Only files whose name begins with this.")
@json_option
@connection_options
def files(connection: Connection, snapshot_id: str, bucket: str, name: str, as_json: bool) -> None:
    """List the files in a snapshot, as they were then."""

    async def work(client: AsyncClient) -> list[SnapshotFile]:
        return [file async for file in _files(client, snapshot_id, bucket, name)]

    print_records(connection.run(work), _FILES, as_json=as_json, empty="The snapshot has no such files.")


@snapshot.command("restore-file")
@_snapshot
@click.argument("file_uuids", metavar="FILE_UUID...", nargs=-1)
@_bucket
@click.option("--all", "is_all", is_flag=True, help="All files that exist no more, instead of FILE_UUID.")
@click.option("--to", "target", default="", metavar="BUCKET", help="Restore to this bucket, not to its own.")
@connection_options
def restore_file(
    connection: Connection,
    snapshot_id: str,
    file_uuids: tuple[str, ...],
    bucket: str,
    target: str,
    *,
    is_all: bool,
) -> int:
    """Bring files of a snapshot back, as new files.

    The cluster keeps running. A file belongs to its owner of then, or to you if that user is gone.
    Permissions and links do not come back. If the parent of a backup is gone, name the parent first.
    """
    if is_all == bool(file_uuids) or (bucket and not is_all):
        raise click.UsageError("Name the files, or give --all, with --bucket for those of one bucket.")

    async def work(client: AsyncClient) -> int:
        bucket_id = (await find_bucket(client, target)).bucket_id if target else ""
        listed = [file async for file in _files(client, snapshot_id, bucket, "")]
        if is_all:
            wanted = [file for file in listed if await _is_gone(client, file.file_uuid)]
        else:
            wanted = _named(listed, file_uuids)
        failures = []
        new_ids: dict[str, str] = {}
        for file in wanted:
            try:
                revived = await client.snapshots.restore_file(
                    snapshot_id,
                    file.file_uuid,
                    bucket_id=bucket_id,
                    parent_backup_uuid=new_ids.get(file.parent_backup_uuid, ""),
                )
            except FAILURES as error:
                failures.append((_name(file), error))
                continue
            new_ids[file.file_uuid] = revived.file_uuid
            click.echo(f"{revived.file_uuid}  {printable_name(_name(file))} of {revived.owner_id}")
        return print_failures(failures)

    return connection.run(work)


@snapshot.command()
@click.argument("path", type=UserPath(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--bundle",
    type=UserPath(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="A bundle of the same cluster.",
)
def verify(path: Path, bundle: Path) -> None:
    """Try whether a snapshot can be restored.

    It is restored into a scratch directory and compared, and that is deleted again. It needs room for two
    copies of the snapshot in the directory for temporary files, and no network. The job `rehearse` does the
    same once a week with the newest snapshot at the other place.
    """
    from coordinator.admin.rehearsal import rehearse

    with TemporaryDirectory(prefix="filestore-") as scratch:
        found = rehearse(path, bundle, Path(scratch))
    click.echo(
        f"{path.name} can be restored: {counted(found.files, 'file', 'files')},"
        f" {counted(found.nodes, 'node', 'nodes')}, entry {found.log_index} of the log"
    )


async def _files(
    client: AsyncClient, snapshot_id: str, bucket: str, name: str
) -> AsyncIterator[SnapshotFile]:
    """The files of a snapshot. A bucket that is gone is found by its name in the snapshot."""
    bucket_id, bucket_name = (bucket, "") if is_uuid(bucket) else ("", bucket)
    async for file in client.snapshots.files(snapshot_id, bucket_id=bucket_id, filename=name):
        if bucket_name in ("", file.bucket_name):
            yield file


def _named(listed: Sequence[SnapshotFile], file_uuids: Sequence[str]) -> list[SnapshotFile]:
    """Return these files, in this order. Raises NotFound for one that is not in the snapshot."""
    found = {file.file_uuid: file for file in listed}
    if missing := [each for each in file_uuids if each not in found]:
        raise NotFound(f"The snapshot has no file {missing[0]}.")
    return [found[each] for each in file_uuids]


async def _is_gone(client: AsyncClient, file_uuid: str) -> bool:
    try:
        await client.files.get(file_uuid)
    except NotFound:
        return True
    return False


def _name(file: SnapshotFile) -> str:
    return f"{file.path}/{file.filename}" if file.path else file.filename
