"""`filestore status` and `filestore dev`: how a cluster is, and a whole one on this machine."""

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from deploy.commands.connection import Connection, connection_options
from deploy.progress import table_console
from node.client import Client


@click.command()
@click.option("--json", "as_json", is_flag=True, help="The answer of the API as it is.")
@connection_options
def status(connection: Connection, as_json: bool) -> int:
    """Show coordinators and nodes. Exit code 1 when the cluster is not healthy."""

    async def work(client: Client) -> dict[str, Any]:
        return await client.status()

    answer = connection.run(work)
    if as_json:
        click.echo(json.dumps(answer, ensure_ascii=False))
    else:
        print_status(answer)
    return 0 if answer["healthy"] else 1


def print_status(answer: dict[str, Any]) -> None:
    """Two tables and a line of totals."""
    console = table_console()
    coordinators = Table("coordinator", "role", "term", "commit", "applied", box=None, pad_edge=False)
    for member in answer["coordinators"]:
        coordinators.add_row(
            *(str(member.get(key, "")) for key in ("id", "role", "term", "commit", "applied"))
        )
    nodes = Table("node", "url", "state", "free", "total", box=None, pad_edge=False)
    for node in answer["nodes"]:
        free, total = (gibibytes(node.get(key, 0)) for key in ("free_bytes", "total_bytes"))
        nodes.add_row(str(node["id"]), str(node["url"]), str(node["state"]), free, total)
    console.print(coordinators)
    console.print(nodes)
    console.print(
        f"{answer['cluster']}: {'healthy' if answer['healthy'] else 'NOT HEALTHY'},"
        f" {answer['files']} files, {answer['blobs']} blobs, {gibibytes(answer['blob_bytes'])}",
        highlight=False,
    )


def gibibytes(size_bytes: int) -> str:
    """For people: 1.5 GiB."""
    return f"{size_bytes / (1 << 30):.1f} GiB"


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".filestore"),
    show_default=True,
)
@click.option(
    "--ports",
    default="free",
    show_default=True,
    metavar="free|BASE",
    help="Free ports, or those from BASE on. Later starts keep the ports of the first.",
)
def dev(data: Path, ports: str) -> None:
    """Run three coordinators and three nodes on this machine until SIGINT or SIGTERM."""
    from deploy.development import serve

    if ports != "free" and not (ports.isdecimal() and 1024 <= int(ports) <= 65000):
        raise click.UsageError("--ports is `free` or a number from 1024 to 65000.")
    serve(data.absolute(), base_port=None if ports == "free" else int(ports))
