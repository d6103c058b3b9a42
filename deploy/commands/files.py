"""`filestore put`, `get`, `ls` and `rm`: files up, files down, what there is, and away with it."""

import json
import mimetypes
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from ca.errors import FilestoreError
from deploy.base.connection import Connection, connection_options, line_of, reason_of
from deploy.base.terminal import ProgressBars, end_at_once_when_interrupted, printable_name, table_console
from deploy.transfer.download import get_to_file, get_to_stream
from deploy.transfer.upload import Wanted, put_files, put_stream
from node.client.client import Client
from node.client.ranges import CONNECTIONS, CONNECTIONS_MAX

COMPRESSIONS = ("none", "deflate", "bz2", "xz", "zstd")


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--project-id", help="[default: the name of the file without its ending]")
@click.option("--project-name", default="")
@click.option("--filename", help="The name that downloads get.  [default: the name of the file]")
@click.option("--content-type", help="[default: guessed from the name]")
@click.option("--version-tag", default="")
@click.option("--compression", type=click.Choice(COMPRESSIONS), default="none", show_default=True)
@click.option("--bucket", "bucket_id", default="", help="The id of a bucket.  [default: the default bucket]")
@click.option(
    "--retention", "retention_period", type=click.IntRange(1, 876000), help="Hours to keep the file."
)
@click.option("--include-images", is_flag=True)
@click.option("--include-snapshots", is_flag=True)
@click.option("--keep-compute-ids", is_flag=True)
@click.option("--reset-mac-addresses", is_flag=True)
@click.option("--read-only", "is_read_only", is_flag=True)
@click.option(
    "--only-url",
    is_flag=True,
    help="Send the bytes through --url, not to the node that the cluster names (behind a balancer).",
)
@click.option(
    "--connections",
    type=click.IntRange(1, CONNECTIONS_MAX),
    default=CONNECTIONS,
    show_default=True,
    help="How many files are sent at once; one file takes one connection.",
)
@connection_options
def put(
    connection: Connection,
    files: tuple[str, ...],
    filename: str | None,
    connections: int,
    only_url: bool,
    **options: Any,
) -> int:
    """Upload each FILE (- alone reads standard input), print its file_uuid; of several, file_uuid and FILE.

    The same command after an interruption goes on where it ended. The checksum is compared at the end.
    """
    if len(files) > 1:
        _check_several(files, filename)

    async def work(client: Client) -> list[str | FilestoreError | OSError]:
        with ProgressBars() as bars:
            if files == ("-",):
                end_at_once_when_interrupted()
                fields = record_fields(filename or "stdin", options)
                with bars.bar(str(fields["filename"])) as progress:
                    stream = sys.stdin.buffer
                    return [await put_stream(client, stream, fields, only_url=only_url, progress=progress)]
            wanted = [
                Wanted(Path(file), record_fields(filename or Path(file).name, options)) for file in files
            ]
            return await put_files(client, wanted, connections=connections, only_url=only_url, bars=bars)

    outcomes = connection.run(work)
    if len(outcomes) == 1 and not isinstance(outcomes[0], str):
        raise outcomes[0]
    return _print_outcomes(files, outcomes)


def _check_several(files: tuple[str, ...], filename: str | None) -> None:
    if filename is not None:
        raise click.UsageError("--filename names one FILE, and several are given.")
    if "-" in files:
        raise click.UsageError("- is given alone.")
    given: dict[Path, str] = {}
    for file in files:
        if (place := Path(file).resolve()) in given:
            raise click.UsageError(f"{given[place]} and {file} are one FILE.")
        given[place] = file


def record_fields(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a new record; those that say nothing are left out."""
    fields = {
        **options,
        "filename": name,
        "project_id": options["project_id"] or Path(name).stem or name,
        "content_type": options["content_type"]
        or mimetypes.guess_type(name)[0]
        or "application/octet-stream",
    }
    return {field: value for field, value in fields.items() if value not in (None, "") and value is not False}


def _print_outcomes(files: Sequence[str], outcomes: Sequence[str | FilestoreError | OSError]) -> int:
    """A line for every file; the exit code."""
    code = int(any(not isinstance(outcome, str) for outcome in outcomes))
    for file, outcome in zip(files, outcomes, strict=True):
        if isinstance(outcome, FilestoreError):
            click.echo(f"filestore: {printable_name(file)}: {line_of(outcome)}", err=True)
        elif isinstance(outcome, OSError):
            click.echo(f"filestore: {printable_name(file)}: {reason_of(outcome)}", err=True)
        elif not _is_printed(outcome if len(files) == 1 else f"{outcome}  {printable_name(file)}"):
            code = 1
    return code


def _is_printed(line: str) -> bool:
    """A line about what is stored; where nobody takes it, it is not lost."""
    try:
        click.echo(line)
    except OSError as error:
        click.echo(f"filestore: stored as {line}, which cannot be printed: {reason_of(error)}", err=True)
        return False
    return True


@click.command()
@click.argument("file_uuid")
@click.option("--output", "-o", help="Where to write; - is standard output.  [default: the name of the file]")
@click.option(
    "--connections",
    type=click.IntRange(1, CONNECTIONS_MAX),
    default=CONNECTIONS,
    show_default=True,
    help="How many connections bring parts of the file, from all nodes given; standard output takes one.",
)
@connection_options
def get(connection: Connection, file_uuid: str, output: str | None, connections: int) -> None:
    """Download a file. The same command after an interruption goes on where it ended (OUTPUT.part)."""

    async def work(client: Client) -> Path | None:
        with ProgressBars() as bars, bars.bar(file_uuid) as progress:
            if output == "-":
                end_at_once_when_interrupted()
                await get_to_stream(client, file_uuid, sys.stdout.buffer, progress=progress)
                return None
            return await get_to_file(client, file_uuid, output, connections=connections, progress=progress)

    path = connection.run(work)
    if path is not None and output is None:
        click.echo(path)


@click.command()
@click.option("--project-id", default="", help="Only the files of this project.")
@click.option("--json", "as_json", is_flag=True, help="The records as the API gives them, one a line.")
@connection_options
def ls(connection: Connection, project_id: str, as_json: bool) -> None:
    """List project files: your own, as an admin all of them."""

    async def work(client: Client) -> list[dict[str, Any]] | None:
        if not as_json:
            return [record async for record in client.project_files(project_id=project_id)]
        async for record in client.project_files(project_id=project_id):
            click.echo(json.dumps(record, ensure_ascii=False))
        return None

    records = connection.run(work)
    if records is not None:
        table_console().print(files_table(records))


@click.command()
@click.argument("file_uuids", metavar="FILE_UUID...", nargs=-1, required=True)
@connection_options
def rm(connection: Connection, file_uuids: tuple[str, ...]) -> int:
    """Delete files for good, of any kind, and uploads that have not ended. Needs admin on each; asks nothing.

    One that is refused does not keep the others.
    """

    async def work(client: Client) -> int:
        code = 0
        for file_uuid in file_uuids:
            try:
                await client.delete_file(file_uuid)
            except FilestoreError as error:
                click.echo(f"filestore: {printable_name(file_uuid)}: {line_of(error)}", err=True)
                code = 1
            else:
                click.echo(f"{printable_name(file_uuid)} is deleted.")
        return code

    return connection.run(work)


def files_table(records: list[dict[str, Any]]) -> Table:
    """One row per record."""
    table = Table("file_uuid", "size", "status", "project", "filename", "created", box=None, pad_edge=False)
    for record in records:
        table.add_row(
            record["file_uuid"],
            str(record["size_bytes"]),
            record["status"],
            printable_name(record["project_id"]),
            printable_name(record["filename"]),
            record["created_at"],
        )
    return table
