"""`filestore rm`, `trash` and `protect`: files are deleted, come back, or cannot be deleted."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

from deploy.base.completion import complete_names
from deploy.base.connection import Connection, connection_options
from deploy.base.failures import FAILURES, exit_code_of, line_of, print_failures
from deploy.base.folder_changes import Failed, delete_found, files_to_change, owner_option
from deploy.base.folders import bucket_id_of, path_of
from deploy.base.lookup import find_bucket, find_file_uuid, is_uuid
from deploy.base.options import Days, Expiry
from deploy.base.output import json_option, moment, print_json, print_records, size
from deploy.base.printed import printable_name
from deploy.commands.files import bucket_option
from filestore_client import AsyncClient
from filestore_client.base.errors import Conflict, NotFound
from filestore_client.base.paths import forms_of
from filestore_client.base.records import TrashedFile

PROTECT_DAYS_MAX: Final = 3660
CANDIDATES_SHOWN_MAX: Final = 10
_COLUMNS: Final[Mapping[str, Callable[[TrashedFile], object]]] = {
    "file_uuid": lambda file: file.file_uuid,
    "kind": lambda file: file.kind,
    "size": lambda file: size(file.size_bytes),
    "deleted": lambda file: moment(file.deleted_at),
    "by": lambda file: file.deleted_by,
    "until": lambda file: moment(file.expires_at),
    "name": lambda file: _name(file),
}
_bucket = click.option("--bucket", default="", help="Only files of this bucket, by its name or its id.")
_named = click.argument("files", metavar="NAME|FILE_UUID...", nargs=-1)
_Failures = list[tuple[str, Exception]]


@click.command()
@click.argument("files", metavar="NAME|FILE_UUID...", nargs=-1, required=True, shell_complete=complete_names)
@click.option(
    "--recursive", "-r", is_flag=True, help="Each NAME is a folder: delete all files in and below it."
)
@owner_option("With -r: delete only the files of this user; may be repeated.  [default: ask, or refuse]")
@click.option("--yes", "-y", is_flag=True, help="With -r: do not ask.")
@click.option("--now", is_flag=True, help="Delete for good: the files do not go to the trash.")
@click.option(
    "--override-protection",
    is_flag=True,
    help="As an admin of the cluster: also delete protected files. It is audited, and raises an alert.",
)
@bucket_option
@connection_options
def rm(
    connection: Connection,
    files: tuple[str, ...],
    recursive: bool,
    owners: tuple[str, ...],
    yes: bool,
    bucket: str,
    *,
    now: bool,
    override_protection: bool,
) -> int:
    """Delete files, and unfinished uploads.

    Files go to the trash of their bucket, and can be restored for some days (`filestore trash`). With --now
    they are deleted for good, and their bytes leave the disks within 15 minutes.

    It asks only before it deletes another user's file by its name, and on a terminal before it deletes a
    folder. Without a terminal, it rejects a folder with files of other users, unless --owner says whose files
    are meant. You need the permission `admin` on each file, which its owner has. If one is refused, the
    others are still deleted. An unfinished upload is named by its file_uuid.
    """
    how = {"now": now, "override_protection": override_protection}
    if recursive:
        codes = [_remove_folder(connection, named, bucket, owners, how, asks=not yes) for named in files]
        return next((code for code in codes if code), 0)
    if owners:
        raise click.UsageError("--owner: only with -r.")

    async def work(client: AsyncClient) -> int:
        code = 0
        for named in files:
            try:
                file_uuid = await find_file_uuid(client, named, bucket=bucket, is_changed=True)
                await client.files.delete(file_uuid, **how)
            except FAILURES as error:
                click.echo(f"filestore: {printable_name(named)}: {line_of(error)}", err=True)
                code = code or exit_code_of(error)
            else:
                click.echo(f"{printable_name(named)} is deleted{' for good' if now else ''}.")
        return code

    return connection.run(work)


def _remove_folder(
    connection: Connection,
    named: str,
    bucket: str,
    owners: tuple[str, ...],
    how: Mapping[str, bool],
    *,
    asks: bool,
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
            if not click.confirm(f"Delete {len(files)} files ({taken}) in {shown}?", err=True):
                raise Conflict("Nothing was deleted.")
        failures = await delete_found(client, files, **how)
        return len(files) - len(failures), failures

    removed, failures = connection.run(work)
    click.echo(f"{shown}: {removed} files are deleted.")
    return print_failures(failures)


@click.group()
def trash() -> None:
    """Deleted files that can still be restored: ls, restore, empty.

    A deleted file stays in the trash of its bucket for some days: 7, unless the cluster or the bucket has
    another number (`filestore bucket set --trash-days`).
    """


@trash.command("ls")
@_bucket
@json_option
@connection_options
def list_trash(connection: Connection, bucket: str, as_json: bool) -> None:
    """List your deleted files; as an admin those of all users.

    With --bucket, admins of the bucket see all that was deleted in it.
    """
    files = connection.run(lambda client: _listed(client, bucket))
    print_records(files, _COLUMNS, as_json=as_json, empty="The trash is empty.")


@trash.command("restore")
@_named
@click.option("--all", "is_all", is_flag=True, help="Everything that `filestore trash ls` lists.")
@_bucket
@click.option("--to", "target", default="", metavar="BUCKET", help="Restore to this bucket, not to its own.")
@connection_options
def restore(connection: Connection, files: tuple[str, ...], bucket: str, target: str, *, is_all: bool) -> int:
    """Restore files from the trash.

    Each is the same as before, with its permissions, but without its public links. An incremental
    backup comes back with the backups in the trash that it builds on. If one cannot be restored, the
    others still are.
    """
    _require_choice(files, is_all=is_all)

    async def work(client: AsyncClient) -> int:
        bucket_id = (await find_bucket(client, target)).bucket_id if target else ""
        failures: _Failures = []
        done: set[str] = set()
        # A parent was deleted after what builds on it: it comes first.
        for file in reversed(await _chosen(client, files, bucket, failures)):
            if file.file_uuid in done:
                continue
            try:
                restored = await client.trash.restore(file.file_uuid, bucket_id=bucket_id)
            except FAILURES as error:
                failures.append((_name(file), error))
                continue
            done |= {file.file_uuid, *restored.parents}
            more = f", with {len(restored.parents)} that it builds on" if restored.parents else ""
            click.echo(f"{printable_name(_name(file))} is restored{more}.")
        return print_failures(failures)

    return connection.run(work)


@trash.command("empty")
@_named
@click.option("--all", "is_all", is_flag=True, help="Everything that `filestore trash ls` lists.")
@_bucket
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@connection_options
def empty(connection: Connection, files: tuple[str, ...], bucket: str, *, is_all: bool, yes: bool) -> int:
    """Delete files in the trash for good.

    Their bytes leave the disks within 15 minutes. A node that is down deletes them when it returns.
    """
    _require_choice(files, is_all=is_all)

    async def work(client: AsyncClient) -> int:
        failures: _Failures = []
        chosen = await _chosen(client, files, bucket, failures)
        taken = size(sum(file.size_bytes for file in chosen))
        if (
            not yes
            and chosen
            and not click.confirm(f"Delete {len(chosen)} files ({taken}) for good?", err=True)
        ):
            raise Conflict("Nothing was deleted.")
        for file in chosen:  # in the order of their deletion: a backup before what it builds on
            try:
                await client.trash.delete(file.file_uuid)
            except NotFound:  # its time was over
                continue
            except FAILURES as error:
                failures.append((_name(file), error))
        click.echo(f"{len(chosen) - len(failures)} files are deleted for good.")
        return print_failures(failures)

    return connection.run(work)


@click.command()
@click.argument("files", metavar="NAME|FILE_UUID...", nargs=-1, required=True, shell_complete=complete_names)
@click.option("--for", "days", type=Days(most=PROTECT_DAYS_MAX), metavar="DAYS", help="For some days: 30d.")
@click.option("--until", type=Expiry(), metavar="TIME", help="Until this time (RFC 3339).")
@click.option("--bucket", default="", help="The bucket of NAME, by its name or its id.")
@json_option
@connection_options
def protect(
    connection: Connection,
    files: tuple[str, ...],
    days: int | None,
    until: dict[str, Any] | None,
    bucket: str,
    as_json: bool,
) -> int:
    """Protect files from deletion until a time.

    A protection can be extended, and not shortened. Admins of the cluster can delete a protected file with
    `filestore rm --override-protection`, which is audited and raises an alert.
    """
    if (days is None) == (until is None):
        raise click.UsageError("Give either --for or --until.")
    if until is not None and "expires_at" not in until:
        raise click.UsageError("--until: give a time, or the days with --for.")

    async def work(client: AsyncClient) -> int:
        failures: _Failures = []
        for named in files:
            try:
                file_uuid = await find_file_uuid(client, named, bucket=bucket, is_changed=True)
                ends_at = until["expires_at"] if until else ""
                done = await client.trash.protect(file_uuid, days=days, protected_until=ends_at)
            except FAILURES as error:
                failures.append((named, error))
                continue
            if as_json:
                print_json(done)
            else:
                click.echo(f"{printable_name(named)} is protected until {moment(done.protected_until)}.")
        return print_failures(failures)

    return connection.run(work)


def _require_choice(files: Sequence[str], *, is_all: bool) -> None:
    if is_all == bool(files):
        raise click.UsageError("Name the files, or give --all.")


async def _listed(client: AsyncClient, bucket: str) -> list[TrashedFile]:
    bucket_id = (await find_bucket(client, bucket)).bucket_id if bucket else ""
    return [file async for file in client.trash.list(bucket_id=bucket_id)]


async def _chosen(
    client: AsyncClient, files: Sequence[str], bucket: str, failures: _Failures
) -> list[TrashedFile]:
    """Return the files that are named, all without names, in the order of their deletion.

    A name that is not found, or that several files have, is added to `failures`.
    """
    listed = await _listed(client, bucket)
    if not files:
        return listed
    chosen: set[str] = set()
    for named in files:
        forms = {named} if is_uuid(named) else {*forms_of(named)}
        found = [file for file in listed if {file.file_uuid, file.filename, _name(file)} & forms]
        if len(found) == 1:
            chosen.add(found[0].file_uuid)
        elif found:
            shown = "; ".join(f"{f.file_uuid}, {moment(f.deleted_at)}" for f in found[-CANDIDATES_SHOWN_MAX:])
            many = f"{len(found)} files in the trash have this name. Give the file_uuid of one: {shown}"
            failures.append((named, Conflict(many)))
        else:
            failures.append((named, NotFound("There is no such file in the trash.")))
    return [file for file in listed if file.file_uuid in chosen]


def _name(file: TrashedFile) -> str:
    return f"{file.path}/{file.filename}" if file.path else file.filename
