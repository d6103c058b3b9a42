"""`filestore get`, `cat`, `ls`, `show`, `find`, `mv`, `du` and `rm`: what there is, and its use."""

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from deploy.base.completion import complete_names
from deploy.base.connection import Connection, connection_options
from deploy.base.failures import FAILURES, exit_code_of, line_of, print_failures
from deploy.base.folder_changes import (
    Failed,
    delete_found,
    files_to_change,
    move_file,
    move_folder,
    owner_option,
    path_of_file,
)
from deploy.base.folder_downloads import Downloads, download_folder
from deploy.base.folders import bucket_id_of, files_below, path_of
from deploy.base.lookup import bucket_names, find_file, find_file_uuid, is_uuid
from deploy.base.names_taken import IfTaken, if_exists_option
from deploy.base.options import Digest
from deploy.base.output import cold_line, json_option, moment, print_json, print_record, print_records, size
from deploy.base.own_files import UserPath
from deploy.base.printed import printable_name
from deploy.base.terminal import ProgressBars, end_at_once_when_interrupted
from deploy.restic.repository import PREFIX
from filestore_client import AsyncClient
from filestore_client.base.errors import Conflict, Forbidden
from filestore_client.base.records import FileRecord, FileSummary, Folder, Kind
from filestore_client.transfer.ranges import CONNECTIONS, CONNECTIONS_MAX

KINDS: Final = ("project", "image", "backup")
NOTHING: Final = "No files. `filestore put FILE` uploads one."
_Listed = FileRecord | FileSummary | Folder


def _column(name: str, show: Callable[[Any], object] = str) -> Callable[[_Listed], object]:
    """Return how a column shows a field; nothing for a folder, which has none of them."""
    return lambda file: "" if isinstance(file, Folder) else show(getattr(file, name, ""))


def _kind_shown(file: _Listed) -> object:
    return "folder" if isinstance(file, Folder) else getattr(file, "kind", "")


def _name_shown(file: _Listed) -> object:
    if isinstance(file, Folder):
        return f"{file.path}/"
    return path_of_file(file)


_COLUMNS: Final[Mapping[str, Callable[[_Listed], object]]] = {
    "file_uuid": _column("file_uuid"),
    "kind": _kind_shown,
    "size": _column("size_bytes", size),
    "created": _column("created_at", moment),
    "name": _name_shown,
}
_LONG_COLUMNS: Final[Mapping[str, Callable[[_Listed], object]]] = {
    **_COLUMNS,
    "status": _column("status"),
    "owner": _column("owner_id"),
    "until": _column("expires_at", moment),
    "type": _column("content_type"),
    "sha256": _column("blob_sha256", lambda sha256: sha256[:12]),
}

kind_option = click.option("--kind", type=click.Choice(KINDS), help="Only files of this kind.")
bucket_option = click.option(
    "--bucket",
    default="",
    help="The bucket of NAME, by its name or its id.  [default: any, for a folder the default]",
)


@click.command()
@click.argument("named", metavar="NAME|FILE_UUID", shell_complete=complete_names)
@click.option(
    "--output",
    "-o",
    type=UserPath(allow_dash=True),
    help="Where to write; - is standard output.  [default: the file's or the folder's own name]",
)
@click.option("--recursive", "-r", is_flag=True, help="NAME is a folder: download all files in and below it.")
@bucket_option
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
    connection: Connection,
    named: str,
    output: str | None,
    connections: int,
    bucket: str,
    *,
    recursive: bool,
    force: bool,
    verify: bool,
) -> int:
    """Download a file by its name or its file_uuid, or a folder.

    NAME may begin with the folder of the file, as in lab1/r1/startup-config.cfg. Where several files have the
    name, they are listed, and nothing is downloaded. After an interruption, the same command resumes from
    OUTPUT.part. The checksum is always compared. A file that is there is replaced
    with --force only; a directory gets the file under its own name. With -r, OUTPUT is the directory that
    gets what is in the folder.
    """
    if recursive:
        return _get_folder(connection, named, output, bucket, connections=connections, replace=force)
    is_directory = output is None or Path(output).is_dir()

    async def work(client: AsyncClient) -> tuple[Path | None, FileRecord | None]:
        # A file_uuid is enough for the content: who may read it need not see its record.
        file = None if not verify and is_uuid(named) else await find_file(client, named, bucket=bucket)
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
    return 0


def _get_folder(
    connection: Connection, named: str, output: str | None, bucket: str, *, connections: int, replace: bool
) -> int:
    """Download a folder; the exit code. Raises click.UsageError, FilestoreError."""
    folder = path_of(named)
    own_name = folder.rpartition("/")[2]
    if output == "-":
        raise click.UsageError("-o -: a folder cannot be written to standard output.")
    if output is None and (not own_name or own_name.startswith(".")):
        raise click.UsageError(f"-r {named}: name the directory for it with -o.")
    directory = Path(output or own_name)
    is_own = output is None or not directory.exists()

    async def work(client: AsyncClient) -> Downloads:
        found = await files_below(client, await bucket_id_of(client, bucket), folder)
        files = [file for file in found if file.status == "available"]
        with ProgressBars() as bars:
            return await download_folder(
                client,
                files,
                folder,
                directory,
                connections=connections,
                replace=replace,
                hidden=is_own,
                bars=bars,
            )

    done = connection.run(work)
    if done.duplicates:
        skipped = "older files that were skipped, because a newer file has the same name"
        click.echo(f"filestore: {skipped}: {done.duplicates}", err=True)
    click.echo(f"{printable_name(str(directory))}: {done.files} files, {size(done.size_bytes)}")
    return print_failures(done.failures)


@click.command()
@click.argument("named", metavar="NAME|FILE_UUID", shell_complete=complete_names)
@bucket_option
@connection_options
def cat(connection: Connection, named: str, bucket: str) -> None:
    """Write the content of a file to standard output."""

    async def work(client: AsyncClient) -> None:
        file_uuid = await find_file_uuid(client, named, bucket=bucket)
        end_at_once_when_interrupted()
        await client.files.download(file_uuid, sys.stdout.buffer)

    connection.run(work)


@click.command()
@click.argument("path", default="")
@click.option(
    "--recursive", "-r", is_flag=True, help="With PATH: show the files of all folders below it too."
)
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
    path: str,
    recursive: bool,
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

    By kind, the oldest first. Of a bucket: every file that is in it. Of PATH: the folders and files in this
    folder of the bucket, by default of the default bucket; / is its top. Files of `filestore serve restic`,
    whose names begin with restic:, are listed with --all, --bucket or such a --name only.
    """
    if recursive and not path:
        raise click.UsageError("--recursive: give PATH; / is the top of the bucket.")
    if path and (kind or project_id):
        raise click.UsageError("PATH: a folder has files of all kinds; leave out --kind and --project-id.")
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
        if bucket or path:
            bucket_id = await bucket_id_of(client, bucket or "")
            folders: list[_Listed] = []
            where = {"filename": filename, "status": status}
            if path:
                where |= {"path": path_of(path) or "/", "recursive": "1" if recursive else ""}
            if path and not (recursive or filename or status):
                folders = [folder async for folder in client.files.folders(bucket_id, path_of(path))]
            return folders + [file async for file in client.files.in_bucket(bucket_id, **where)]
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
@bucket_option
@json_option
@connection_options
def show(connection: Connection, named: str, bucket: str, as_json: bool) -> None:
    """Show the whole record of a file."""
    print_record(connection.run(lambda client: find_file(client, named, bucket=bucket)), as_json=as_json)


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
@click.argument("target", metavar="NEW_NAME")
@click.option("--recursive", "-r", is_flag=True, help="NAME is a folder, and NEW_NAME its new path.")
@owner_option("With -r: move only the files of this user; may be repeated.  [default: ask, or refuse]")
@if_exists_option
@bucket_option
@json_option
@connection_options
def mv(
    connection: Connection,
    named: str,
    target: str,
    recursive: bool,
    owners: tuple[str, ...],
    if_exists: str | None,
    bucket: str,
    as_json: bool,
) -> int:
    """Rename a file, or move a file or a folder.

    NEW_NAME with a / is a folder and a name in it; with a / at its end it is a folder, and the name stays;
    / at its beginning is the top of the bucket. Without a / the folder stays. The content of a file, its
    file_uuid and links to it stay the same. It asks before it moves files of other users.
    """
    policy = IfTaken(if_exists) if if_exists else None
    if recursive:
        return _move_folder(connection, path_of(named), path_of(target), bucket, owners, policy)
    if owners:
        raise click.UsageError("--owner: only with -r.")
    folder, slash, name = target.rpartition("/")
    changes = {"path": path_of(folder) or "/"} if slash else {}
    if name:
        changes["filename"] = name

    async def work(client: AsyncClient) -> tuple[FileRecord | None, Failed]:
        file_uuid = await find_file_uuid(client, named, bucket=bucket, is_changed=True)
        return await move_file(client, await client.files.get(file_uuid), changes, policy)

    renamed, failures = connection.run(work)
    if renamed is not None and as_json:
        print_json(renamed)
    elif renamed is not None:
        click.echo(f"{renamed.file_uuid} is now named {printable_name(path_of_file(renamed))}.")
    return print_failures(failures)


def _move_folder(
    connection: Connection,
    folder: str,
    target: str,
    bucket: str,
    owners: tuple[str, ...],
    policy: IfTaken | None,
) -> int:
    """Move the files in a folder and below it; the exit code."""
    if not folder:
        raise click.UsageError("-r: the top of a bucket cannot be moved.")

    async def work(client: AsyncClient) -> tuple[int, Failed]:
        bucket_id = await bucket_id_of(client, bucket)
        files = await files_to_change(client, bucket_id, folder, owners)
        folders = {file.path: f"{target}{file.path[len(folder) :]}".strip("/") for file in files}
        return await move_folder(client, bucket_id, bucket, folders, files, policy)

    moved, failures = connection.run(work)
    click.echo(f"{printable_name(target or '/')}: {moved} files were moved here.")
    return print_failures(failures)


@click.command()
@json_option
@connection_options
def du(connection: Connection, as_json: bool) -> None:
    """Show the space that files use, by bucket and kind.

    Counts your own complete files; for admins, those of all users. Admins also see how much cold replicas
    take on the disks of the nodes.
    """
    cold: list[str] = []

    async def work(client: AsyncClient) -> list[dict[str, Any]]:
        if not as_json:
            with suppress(Forbidden):
                cold.append(cold_line((await client.cluster.status())["nodes"]))
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
    for line in filter(None, cold):
        click.echo(line)


@click.command()
@click.argument("files", metavar="NAME|FILE_UUID...", nargs=-1, required=True, shell_complete=complete_names)
@click.option(
    "--recursive", "-r", is_flag=True, help="Each NAME is a folder: delete all files in and below it."
)
@owner_option("With -r: delete only the files of this user; may be repeated.  [default: ask, or refuse]")
@click.option("--yes", "-y", is_flag=True, help="With -r: do not ask.")
@bucket_option
@connection_options
def rm(
    connection: Connection,
    files: tuple[str, ...],
    recursive: bool,
    owners: tuple[str, ...],
    yes: bool,
    bucket: str,
) -> int:
    """Delete files for good, and unfinished uploads.

    It asks only before it deletes another user's file by its name, and on a terminal before it deletes a
    folder. Without a terminal, it rejects a folder with files of other users, unless --owner says whose files
    are meant. You need the permission `admin` on each file, which its owner has. If one is refused, the
    others are still deleted. An unfinished upload is named by its file_uuid.
    """
    if recursive:
        codes = [_remove_folder(connection, named, bucket, owners, asks=not yes) for named in files]
        return next((code for code in codes if code), 0)
    if owners:
        raise click.UsageError("--owner: only with -r.")

    async def work(client: AsyncClient) -> int:
        code = 0
        for named in files:
            try:
                file_uuid = await find_file_uuid(client, named, bucket=bucket, is_changed=True)
                await client.files.delete(file_uuid)
            except FAILURES as error:
                click.echo(f"filestore: {printable_name(named)}: {line_of(error)}", err=True)
                code = code or exit_code_of(error)
            else:
                click.echo(f"{printable_name(named)} is deleted.")
        return code

    return connection.run(work)


def _remove_folder(
    connection: Connection, named: str, bucket: str, owners: tuple[str, ...], *, asks: bool
) -> int:
    """Delete the files in a folder and below it; the exit code. Raises Conflict if the answer is no."""
    folder = path_of(named)
    if not folder:
        raise click.UsageError("-r: name a folder; the top of a bucket is not deleted in one command.")
    shown = printable_name(folder)

    async def work(client: AsyncClient) -> tuple[int, Failed]:
        bucket_id = await bucket_id_of(client, bucket)
        files = await files_to_change(client, bucket_id, folder, owners, is_asked=asks)
        if asks and sys.stdin.isatty():
            taken = size(sum(file.size_bytes for file in files))
            if not click.confirm(f"Delete {len(files)} files ({taken}) in {shown} for good?", err=True):
                raise Conflict("Nothing was deleted.")
        failures = await delete_found(client, files)
        return len(files) - len(failures), failures

    removed, failures = connection.run(work)
    click.echo(f"{shown}: {removed} files are deleted.")
    return print_failures(failures)
