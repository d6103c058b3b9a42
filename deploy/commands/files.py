"""`filestore get`, `cat`, `ls`, `show`, `find`, `mv`, `du` and `rm`: what there is, and its use."""

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from deploy.base.completion import complete_names
from deploy.base.connection import Connection, connection_options
from deploy.base.failures import FAILURES, exit_code_of, line_of
from deploy.base.lookup import bucket_names, find_bucket, find_file, find_file_uuid, is_uuid
from deploy.base.options import Digest
from deploy.base.output import json_option, moment, print_json, print_record, print_records, size
from deploy.base.own_files import UserPath
from deploy.base.printed import printable_name
from deploy.base.terminal import ProgressBars, end_at_once_when_interrupted
from deploy.restic.repository import PREFIX
from filestore_client import AsyncClient
from filestore_client.base.records import FileRecord, FileSummary, Kind
from filestore_client.transfer.ranges import CONNECTIONS, CONNECTIONS_MAX

KINDS: Final = ("project", "image", "backup")
NOTHING: Final = "No files. `filestore put FILE` uploads one."
_Listed = FileRecord | FileSummary
_COLUMNS: Final[Mapping[str, Callable[[_Listed], object]]] = {
    "file_uuid": lambda file: file.file_uuid,
    "kind": lambda file: getattr(file, "kind", ""),
    "size": lambda file: size(file.size_bytes),
    "created": lambda file: moment(file.created_at),
    "name": lambda file: file.filename,
}
_LONG_COLUMNS: Final[Mapping[str, Callable[[_Listed], object]]] = {
    **_COLUMNS,
    "status": lambda file: file.status,
    "owner": lambda file: getattr(file, "owner_id", ""),
    "until": lambda file: moment(file.expires_at),
    "type": lambda file: file.content_type,
    "sha256": lambda file: file.blob_sha256[:12],
}

kind_option = click.option("--kind", type=click.Choice(KINDS), help="Only files of this kind.")


@click.command()
@click.argument("named", metavar="NAME|FILE_UUID", shell_complete=complete_names)
@click.option(
    "--output",
    "-o",
    type=UserPath(allow_dash=True),
    help="Where to write; - is standard output.  [default: the file's own name]",
)
@click.option(
    "--connections",
    type=click.IntRange(1, CONNECTIONS_MAX),
    default=CONNECTIONS,
    show_default=True,
    help="How many connections bring parts of the file, from all nodes given; standard output takes one.",
)
@click.option("--force", "-f", is_flag=True, help="Replace OUTPUT if it is there.")
@click.option("--verify", is_flag=True, help="Print the checksum that was compared, on standard error.")
@connection_options
def get(
    connection: Connection, named: str, output: str | None, connections: int, *, force: bool, verify: bool
) -> None:
    """Download a file by its name or its file_uuid.

    Where several files have the name, they are listed, and nothing is downloaded. The same command after an
    interruption goes on where it ended: what has come is in OUTPUT.part. The checksum is always compared.
    A file that is there is replaced with --force only; a directory gets the file under its own name.
    """
    is_directory = output is None or Path(output).is_dir()

    async def work(client: AsyncClient) -> tuple[Path | None, FileRecord | None]:
        # A file_uuid is enough for the content: who may read it need not see its record.
        file = None if not verify and is_uuid(named) else await find_file(client, named)
        file_uuid = named if file is None else file.file_uuid
        with ProgressBars() as bars, bars.bar(named) as progress:
            if output == "-":
                end_at_once_when_interrupted()
                await client.files.download(file_uuid, sys.stdout.buffer, progress=progress)
                return None, file
            path = await client.files.download(
                file_uuid, output, connections=connections, replace=force, progress=progress
            )
            return path, file

    path, file = connection.run(work)
    if path is not None and is_directory:
        click.echo(path)
    if verify and file is not None:
        click.echo(f"sha256 {file.blob_sha256}: the content is what was stored.", err=True)


@click.command()
@click.argument("named", metavar="NAME|FILE_UUID", shell_complete=complete_names)
@connection_options
def cat(connection: Connection, named: str) -> None:
    """Write the content of a file to standard output."""

    async def work(client: AsyncClient) -> None:
        file_uuid = await find_file_uuid(client, named)
        end_at_once_when_interrupted()
        await client.files.download(file_uuid, sys.stdout.buffer)

    connection.run(work)


@click.command()
@kind_option
@click.option("--bucket", help="Only files of this bucket, by its name or its id.")
@click.option("--project-id", default="", help="Only files of this project.")
@click.option("--name", "filename", default="", help="Only files whose name begins with this.")
@click.option(
    "--status", default="", help="Only files in this state, such as available, pending or uploading."
)
@click.option(
    "--long", "-l", "is_long", is_flag=True, help="Show status, owner, expiry, type and checksum too."
)
@click.option("--all", "-a", "is_all", is_flag=True, help="Show files of `filestore serve restic` too.")
@json_option
@connection_options
def ls(
    connection: Connection,
    kind: Kind | None,
    bucket: str | None,
    project_id: str,
    filename: str,
    status: str,
    is_long: bool,
    is_all: bool,
    as_json: bool,
) -> None:
    """List files: your own, as an admin all of them.

    By kind, the oldest first. Of a bucket: every file that is in it. Files of `filestore serve restic`, whose
    names begin with restic:, are listed with --all, --bucket or such a --name only.
    """
    if bucket and (kind or project_id):
        raise click.UsageError(
            "--bucket: lists files of all kinds, so it cannot be combined with --kind or --project-id."
        )
    if project_id and kind not in (None, "project"):
        raise click.UsageError("--project-id: only projects have one.")
    hidden = "" if is_all or filename.startswith(PREFIX) else PREFIX
    filters = {
        "project_id": project_id,
        "filename": filename,
        "status": status,
        "without_filename": hidden,
    }
    only_projects: Kind | None = "project" if project_id else kind

    async def work(client: AsyncClient) -> list[_Listed]:
        if bucket:
            found = await find_bucket(client, bucket)
            listed = client.files.in_bucket(found.bucket_id, filename=filename, status=status)
            return [file async for file in listed]
        files: list[_Listed] = []
        async for record in client.files.list(only_projects, **filters):
            if as_json:
                print_json(record)  # at once: there may be very many
            else:
                files.append(record)
        return files

    records = connection.run(work)
    if records or not as_json:
        print_records(records, _LONG_COLUMNS if is_long else _COLUMNS, as_json=as_json, empty=NOTHING)


@click.command()
@click.argument("named", metavar="NAME|FILE_UUID", shell_complete=complete_names)
@json_option
@connection_options
def show(connection: Connection, named: str, as_json: bool) -> None:
    """Show the whole record of a file."""
    print_record(connection.run(lambda client: find_file(client, named)), as_json=as_json)


@click.command()
@click.option("--md5", type=Digest(32), metavar="DIGEST", help="VM images whose content has this MD5.")
@click.option(
    "--sha256", type=Digest(64), metavar="DIGEST", help="Files of any kind whose content has this SHA-256."
)
@json_option
@connection_options
def find(connection: Connection, md5: str | None, sha256: str | None, as_json: bool) -> int:
    """Find files by the checksum of their content.

    Exit code 4 if there is none.
    """
    if (md5 is None) == (sha256 is None):
        raise click.UsageError("Give either --md5 or --sha256.")

    async def work(client: AsyncClient) -> list[_Listed]:
        if md5 is not None:
            return [image async for image in client.images.list(md5=md5, status="available")]
        return [file async for file in client.files.list(status="available") if file.blob_sha256 == sha256]

    found = connection.run(work)
    print_records(found, _COLUMNS, as_json=as_json, empty="No available file has this content.")
    return 0 if found else 4


@click.command()
@click.argument("named", metavar="NAME|FILE_UUID", shell_complete=complete_names)
@click.argument("filename", metavar="NEW_NAME")
@json_option
@connection_options
def mv(connection: Connection, named: str, filename: str, as_json: bool) -> None:
    """Rename a file.

    Its content, its file_uuid and links to it stay the same.
    """

    async def work(client: AsyncClient) -> FileRecord:
        file = await client.files.get(await find_file_uuid(client, named, is_changed=True))
        return await client.files.update(file.file_uuid, if_match=file.etag, filename=filename)

    renamed = connection.run(work)
    if as_json:
        print_json(renamed)
    else:
        click.echo(f"{renamed.file_uuid} is now named {printable_name(renamed.filename)}.")


@click.command()
@json_option
@connection_options
def du(connection: Connection, as_json: bool) -> None:
    """Show the space that files use, by bucket and kind.

    Counts your own complete files; for admins, those of all users.
    """

    async def work(client: AsyncClient) -> list[dict[str, Any]]:
        sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        async for file in client.files.list(status="available"):
            sums[file.bucket_id, file.kind][0] += 1
            sums[file.bucket_id, file.kind][1] += file.size_bytes
        names = await bucket_names(client)
        return [
            {
                "bucket_id": bucket_id,
                "bucket": names.get(bucket_id, ""),
                "kind": kind,
                "files": files,
                "size_bytes": size_bytes,
            }
            for (bucket_id, kind), (files, size_bytes) in sorted(sums.items())
        ]

    columns: dict[str, Callable[[dict[str, Any]], object]] = {
        "bucket": lambda row: row["bucket"] or row["bucket_id"],
        "kind": lambda row: row["kind"],
        "files": lambda row: row["files"],
        "size": lambda row: size(row["size_bytes"]),
    }
    rows = connection.run(work)
    if len(rows) > 1 and not as_json:
        total = {name: sum(row[name] for row in rows) for name in ("files", "size_bytes")}
        rows.append({"bucket": "total", "kind": "", **total})
    print_records(rows, columns, as_json=as_json, empty=NOTHING)


@click.command()
@click.argument("files", metavar="NAME|FILE_UUID...", nargs=-1, required=True, shell_complete=complete_names)
@connection_options
def rm(connection: Connection, files: tuple[str, ...]) -> int:
    """Delete files for good, and unfinished uploads.

    It asks only before it deletes another user's file by its name. You need the permission `admin` on each
    file, which its owner has. If one is refused, the others are still deleted. An unfinished upload is named
    by its file_uuid.
    """

    async def work(client: AsyncClient) -> int:
        code = 0
        for named in files:
            try:
                await client.files.delete(await find_file_uuid(client, named, is_changed=True))
            except FAILURES as error:
                click.echo(f"filestore: {printable_name(named)}: {line_of(error)}", err=True)
                code = code or exit_code_of(error)
            else:
                click.echo(f"{printable_name(named)} is deleted.")
        return code

    return connection.run(work)
