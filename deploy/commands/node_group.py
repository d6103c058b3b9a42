"""`filestore node drain|undrain|remove`: nodes that leave the cluster, through the API."""

from typing import Any
from urllib.parse import quote

import click

from coordinator.telling import counted
from deploy.commands.connection import Connection, connection_options
from node.client import Client

PATH = "/api/v1/cluster/nodes"


@click.command()
@click.argument("node_id")
@click.option("--force", is_flag=True, help="Also where it keeps damaged copies that others need.")
@connection_options
def drain(connection: Connection, node_id: str, *, force: bool) -> None:
    """Place nothing new on a node. It goes on serving what it holds. Tells what is refused from now on."""
    _call(connection, "POST", node_id, "/drain?force=1" if force else "/drain")
    click.echo(f"{node_id} is draining.")
    answer = connection.run(Client.status)
    if answer.get("health") == "unavailable":
        for problem in answer["problems"]:
            click.echo(f"! {problem}", err=True)


@click.command()
@click.argument("node_id")
@connection_options
def undrain(connection: Connection, node_id: str) -> None:
    """Place new files on a node again."""
    _call(connection, "DELETE", node_id, "/drain")
    click.echo(f"{node_id} takes new files.")


@click.command()
@click.argument("node_id")
@click.option("--force", is_flag=True, help="It is down and does not come back: give up what it holds.")
@click.option("--give-up", is_flag=True, help="Also what no other node has that is not down.")
@connection_options
def remove(connection: Connection, node_id: str, *, force: bool, give_up: bool) -> None:
    """Take a node out of the cluster for good. It must be draining and hold nothing."""
    said = [name for name, is_said in (("force=1", force), ("give_up=1", give_up)) if is_said]
    _call(connection, "DELETE", node_id, f"?{'&'.join(said)}" if said else "")
    click.echo(f"{node_id} is removed.")
    if not force:
        return
    replicas = connection.run(Client.status).get("replicas") or {}
    if last := replicas.get("last"):
        many = counted(last, "blob is", "blobs are")
        click.echo(f"! {many} on one node alone that is there: stop none, add one.", err=True)


def _call(connection: Connection, method: str, node_id: str, what: str = "") -> None:
    async def work(client: Client) -> None:
        await client.call(method, f"{PATH}/{quote(node_id, safe='')}{what}", dict[str, Any])

    connection.run(work)
