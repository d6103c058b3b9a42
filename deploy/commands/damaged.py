"""`filestore damaged`: content that no node holds whole, and which bytes of it are lost."""

from typing import Any, Final

import click
from rich.table import Table

from deploy.base.connection import Connection, connection_options
from deploy.base.failures import NEEDS_ATTENTION
from deploy.base.output import json_option, print_json
from deploy.base.terminal import printable_name, table_console
from filestore_client import AsyncClient

PATH: Final = "/api/v1/cluster/damaged"
RANGES_SHOWN_MAX: Final = 5


@click.command()
@json_option
@connection_options
def damaged(connection: Connection, as_json: bool) -> int:
    """List files that no node holds whole, and what is lost. Admins only.

    Content is listed that is damaged on every node that holds it. Where bytes are lost, all others of the
    content can still be downloaded, by ranges. What else is listed is made whole from the parts that are
    sound. Exit code 0 when bytes are lost nowhere, 10 when some are.
    """

    async def work(client: AsyncClient) -> dict[str, Any]:
        return await client.call("GET", PATH, dict[str, Any])

    answer = connection.run(work)
    contents = answer["contents"]
    if as_json:
        print_json(answer)
    elif not contents:
        click.echo("Every content is whole on a node.")
    else:
        table_console().print(_table(contents))
    return NEEDS_ATTENTION if any(content["lost_bytes"] for content in contents) else 0


def _table(contents: list[dict[str, Any]]) -> Table:
    table = Table("file", "name", "size", "lost bytes", "copies on", box=None, pad_edge=False)
    for content in contents:
        nodes = ", ".join(content["nodes"])
        lost = _lost(content)
        for file in content["files"]:
            table.add_row(
                file["file_uuid"], printable_name(file["filename"]), str(content["size_bytes"]), lost, nodes
            )
    return table


def _lost(content: dict[str, Any]) -> str:
    """Which bytes, as a Range header names them."""
    ranges = content["lost_ranges"]
    if not ranges:
        return "none"
    shown = ", ".join(f"{each['first']}-{each['last']}" for each in ranges[:RANGES_SHOWN_MAX])
    return f"{shown} and more" if len(ranges) > RANGES_SHOWN_MAX else shown
