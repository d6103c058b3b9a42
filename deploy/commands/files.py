"""`filestore put`, `get` and `ls`: files up, files down, and what there is."""

import json
import mimetypes
import sys
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from deploy.commands.connection import Connection, connection_options
from deploy.getting import get_to_file, get_to_stream
from deploy.progress import ProgressBar, table_console
from deploy.putting import put_file, put_stream
from node.client import Client

COMPRESSIONS = ("none", "deflate", "bz2", "xz", "zstd")


@click.command()
@click.argument("file")
@click.option("--project-id", help="[default: the name of the file without its ending]")
@click.option("--project-name", default="")
@click.option("--filename", help="The name that downloads get.  [default: the name of the file]")
@click.option("--content-type", help="[default: guessed from the name]")
@click.option("--version-tag", default="")
@click.option("--compression", type=click.Choice(COMPRESSIONS), default="none", show_default=True)
@click.option("--bucket", "bucket_id", default="", help="The id of a bucket.  [default: the default bucket]")
@click.option(
    "--retention", "retention_hours", type=click.IntRange(0, 876000), help="Hours to keep the file."
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
@connection_options
def put(
    connection: Connection,
    file: str,
    filename: str | None,
    project_id: str | None,
    only_url: bool,
    **options: Any,
) -> None:
    """Upload FILE (- reads standard input), print its file_uuid.

    The same command after an interruption goes on where it ended. The checksum is compared at the end.
    """
    name = filename or ("stdin" if file == "-" else Path(file).name)
    fields = {
        "filename": name,
        "project_id": project_id or Path(name).stem or name,
        "content_type": options.pop("content_type")
        or mimetypes.guess_type(name)[0]
        or "application/octet-stream",
        "retention_period": options.pop("retention_hours"),
        **options,
    }
    fields = {field: value for field, value in fields.items() if value not in (None, "", False)}

    async def work(client: Client) -> str:
        with ProgressBar(name) as bar:
            if file == "-":
                return await put_stream(client, sys.stdin.buffer, fields, only_url=only_url, progress=bar.set)
            return await put_file(client, Path(file), fields, only_url=only_url, progress=bar.set)

    click.echo(connection.run(work))


@click.command()
@click.argument("file_uuid")
@click.option("--output", "-o", help="Where to write; - is standard output.  [default: the name of the file]")
@connection_options
def get(connection: Connection, file_uuid: str, output: str | None) -> None:
    """Download a file. The same command after an interruption goes on where it ended (OUTPUT.part)."""

    async def work(client: Client) -> Path | None:
        with ProgressBar(file_uuid) as bar:
            if output == "-":
                await get_to_stream(client, file_uuid, sys.stdout.buffer, progress=bar.set)
                return None
            return await get_to_file(client, file_uuid, output, progress=bar.set)

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


def files_table(records: list[dict[str, Any]]) -> Table:
    """One row per record."""
    table = Table("file_uuid", "size", "status", "project", "filename", "created", box=None, pad_edge=False)
    for record in records:
        table.add_row(
            record["file_uuid"],
            str(record["size_bytes"]),
            record["status"],
            printable(record["project_id"]),
            printable(record["filename"]),
            record["created_at"],
        )
    return table


def printable(text: str) -> str:
    """User text for a terminal: control characters and rich's markup do nothing."""
    return "".join(letter if letter.isprintable() else "?" for letter in text).replace("[", r"\[")
