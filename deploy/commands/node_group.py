"""`filestore node ls|show|drain|undrain|revoke|remove|forget-instance`: nodes, as they stay or leave.

Tested by tests/cluster/test_command_members.py.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

import click

from deploy.base.connection import Connection, connection_options
from deploy.base.output import json_option, moment, print_record, print_records
from filestore_client import AsyncClient
from filestore_client.base.records import Node
from metadata.model.jobs import DRAIN
from runtime.wording import counted

PATH = "/api/v1/cluster/nodes"
JOBS_PATH = "/api/v1/jobs"
_COLUMNS: Final[Mapping[str, Callable[[Node], object]]] = {
    "node": lambda node: node.id,
    "url": lambda node: node.url,
    "zone": lambda node: node.zone,
    "weight": lambda node: node.weight,
    "draining": lambda node: node.draining,
    "joined": lambda node: moment(node.joined_at),
}


@click.command("ls")
@json_option
@connection_options
def list_nodes(connection: Connection, as_json: bool) -> None:
    """List the nodes. Admins only.

    `filestore status` shows their state.
    """

    async def work(client: AsyncClient) -> list[Node]:
        return [each async for each in client.nodes.list()]

    empty = "No nodes. `filestore token join` creates a token for one."
    print_records(connection.run(work), _COLUMNS, as_json=as_json, empty=empty)


@click.command("show")
@click.argument("node_id")
@json_option
@connection_options
def show_node(connection: Connection, node_id: str, as_json: bool) -> None:
    """Show the whole record of a node. Admins only."""
    print_record(connection.run(lambda client: client.nodes.get(node_id)), as_json=as_json)


@click.command()
@click.argument("node_id")
@click.option("--force", is_flag=True, help="Drain it even if it keeps damaged copies that others need.")
@connection_options
def drain(connection: Connection, node_id: str, *, force: bool) -> None:
    """Place nothing new on a node, and empty it. Admins only.

    It continues to serve its content until other nodes have it. Warns if the cluster rejects changes or
    uploads from now on, and if too few other nodes are left to take its content. Run it again to see
    which unfinished uploads could not be moved so far, and why.
    """
    _call(connection, "POST", node_id, "/drain?force=1" if force else "/drain")
    answer = connection.run(lambda client: client.cluster.status())
    held = next((node.get("replicas") or 0 for node in answer["nodes"] if node["id"] == node_id), 0)
    many = counted(held, "replica", "replicas")
    click.echo(
        f"{node_id} is draining: {many} to go. One stays until other nodes have the content, and for ten"
        " minutes after it was written."
    )
    click.echo(f"`filestore status` shows the progress; then `filestore node remove {node_id}`.")
    _show_unmoved(connection)
    rejects = answer.get("health") == "unavailable"
    for problem in answer["problems"]:
        if rejects or problem.startswith(f"The node {node_id} cannot be drained: "):
            click.echo(f"! {problem}", err=True)


@click.command()
@click.argument("node_id")
@connection_options
def undrain(connection: Connection, node_id: str) -> None:
    """Place new files on a node again. Admins only."""
    _call(connection, "DELETE", node_id, "/drain")
    click.echo(f"{node_id} accepts new files.")


@click.command()
@click.argument("node_id")
@click.option("--force", is_flag=True, help="Remove a node that is down for good, and give up its content.")
@click.option("--is-gone", is_flag=True, help="With --force: at once, before it counts as down.")
@click.option(
    "--give-up", is_flag=True, help="Remove it even if content is lost that no other live node has."
)
@connection_options
def remove(connection: Connection, node_id: str, *, force: bool, is_gone: bool, give_up: bool) -> None:
    """Remove a node from the cluster for good. Admins only.

    It must be draining and hold nothing, not even a part of an unfinished upload.
    """
    if is_gone and not force:
        raise click.UsageError("--is-gone: only with --force.")
    flags = (("force=1", force), ("is_gone=1", is_gone), ("give_up=1", give_up))
    said = [name for name, is_said in flags if is_said]
    removed = _call(connection, "DELETE", node_id, f"?{'&'.join(said)}" if said else "")
    click.echo(f"{node_id} is removed.")
    if not force:
        return
    if uploads := removed.get("uploads"):
        many = counted(uploads, "unfinished upload was", "unfinished uploads were")
        click.echo(f"! {many} on this node. Those without their bytes on another node start over.", err=True)
    replicas = connection.run(lambda client: client.cluster.status()).get("replicas") or {}
    if last := replicas.get("last"):
        many = counted(last, "blob is", "blobs are")
        click.echo(f"! {many} on only one live node. Do not stop it; add a node.", err=True)


@click.command()
@click.argument("node_id")
@connection_options
def revoke(connection: Connection, node_id: str) -> None:
    """End the certificates of a node at once. Admins only.

    Use it if they, or the node's directory, were stolen or copied. The command reports how many replicas must
    be created again, and which content only this node has.
    """
    revoked = _call(connection, "POST", node_id, "/revoke")
    click.echo(f"{node_id} is revoked. Its certificates are rejected, and its replicas do not count.")
    if replicas := revoked["replicas"]:
        many = counted(replicas, "replica", "replicas")
        click.echo(f"! {many} must be created on other nodes. Repair does that automatically.", err=True)
    if sole := revoked["only_there"]:
        many = counted(sole, "blob is", "blobs are")
        click.echo(f"! {many} on no other live node. Keep its disk, and bring the node back.", err=True)
    if named := revoked["uploads_only_there"]:
        click.echo(f"! Unfinished uploads that may be only on this node: {', '.join(named)}", err=True)
    click.echo(
        "If the node is gone, or its content is not needed: `filestore node remove --force "
        f"{node_id}`. If its disk is intact, join it again with a token for its name, as the runbook "
        "describes."
    )


@click.command("forget-instance")
@click.argument("node_id")
@connection_options
def forget_instance(connection: Connection, node_id: str) -> None:
    """Accept another directory as that of a node. Admins only.

    Use it for a directory that was restored from a backup. Stop every other process of this node first. The
    node's replicas count again after they were compared with the log.
    """
    _call(connection, "DELETE", node_id, "/instance")
    click.echo(f"The next process with the certificate of {node_id} is accepted as this node.")


def _show_unmoved(connection: Connection) -> None:
    """Print the unfinished uploads that the newest drain has left, if known."""

    async def work(client: AsyncClient) -> dict[str, Any]:
        return await client.call("GET", JOBS_PATH, dict[str, Any])

    jobs = {job["job_name"]: job for job in connection.run(work)["jobs"]}
    last_run = jobs.get(DRAIN.name, {}).get("last_run") or {}
    if unmoved := last_run.get("result", {}).get("kept"):
        click.echo(f"! Unfinished uploads that could not be moved: {unmoved}", err=True)


def _call(connection: Connection, method: str, node_id: str, what: str = "") -> dict[str, Any]:
    async def work(client: AsyncClient) -> dict[str, Any]:
        path = f"{PATH}/{quote(node_id, safe='')}{what}"
        return await client.call(method, path, dict[str, Any], repeats=True)

    return connection.run(work)
