"""`filestore coordinator add|remove|transfer-leader|status`: the group of coordinators, through the API.

Tested by tests/cluster/test_coordinators.py.
"""

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import click

from deploy.base.addresses import METAVAR, record_at
from deploy.base.connection import Connection, connection_options
from deploy.base.failures import NEEDS_ATTENTION
from deploy.base.output import json_option, print_json, print_records
from filestore_client import AsyncClient
from metadata.model.records import CoordinatorRecord

PATH = "/api/v1/cluster/coordinators"
COLUMNS = (
    "id",
    "role",
    "membership",
    "term",
    "commit",
    "applied",
    "match",
    "lag",
    "replication",
    "active",
    "disk_full",
    "recovering",
    "diverged",
)


@click.command()
@click.option("--id", "coordinator_id", required=True, help="The name of the new coordinator.")
@click.option("--address", required=True, metavar=METAVAR, help="Its address.")
@connection_options
def add(connection: Connection, coordinator_id: str, address: str) -> None:
    """Add a coordinator to the group. Admins only.

    It votes as soon as it has caught up.
    """
    record = record_at(coordinator_id, address)
    connection.run(lambda client: add_coordinator(client, record))
    click.echo(f"{coordinator_id} is a learner; `filestore coordinator status` shows when it votes.")


@click.command()
@click.argument("coordinator_id")
@connection_options
def remove(connection: Connection, coordinator_id: str) -> None:
    """Remove a coordinator from the group for ever. Admins only.

    Its name cannot be used again.
    """
    connection.run(lambda client: remove_coordinator(client, coordinator_id))
    click.echo(f"{coordinator_id} is removed.")


@click.command("transfer-leader")
@click.option(
    "--to", "target", default="", metavar="ID", help="The next leader.  [default: the most advanced]"
)
@connection_options
def transfer_leader(connection: Connection, target: str) -> None:
    """Transfer the lead to another coordinator. Admins only.

    Use it, for example, before maintenance of the leader's machine.
    """

    async def work(client: AsyncClient) -> str:
        body = {"id": target} if target else {}
        path = "/api/v1/cluster/leader"
        return (await client.call("POST", path, dict[str, str], body=body, repeats=True))["leader"]

    click.echo(f"{connection.run(work)} is the leader.")


@click.command()
@json_option
@connection_options
def status(connection: Connection, as_json: bool) -> int:
    """Show the state of the coordinators. Admins only.

    Exit code 10 if one of them is unhealthy, or there is no leader.
    """
    from deploy.base.output import print_table  # here: a coordinator that starts waits for none of it

    async def work(client: AsyncClient) -> dict[str, Any]:
        return await client.cluster.status()

    answer = connection.run(work)
    coordinators = answer["coordinators"]
    if as_json:
        print_json({"leader": answer["leader"], "coordinators": coordinators})
    else:
        rows = [[_shown(each.get(name, "")) for name in COLUMNS] for each in coordinators]
        print_table([name.replace("_", " ") for name in COLUMNS], rows)
        if not answer["leader"]:
            click.echo("! No coordinator leads: nothing can be changed.")
    is_well = all(
        each["role"] != "unreachable"
        and not any(each.get(name) for name in ("diverged", "disk_full", "recovering"))
        for each in coordinators
    )
    return 0 if answer["leader"] and is_well else NEEDS_ATTENTION


@click.command("ls")
@json_option
@connection_options
def list_coordinators(connection: Connection, as_json: bool) -> None:
    """List the coordinators.

    `filestore coordinator status` shows their state.
    """

    async def work(client: AsyncClient) -> list[dict[str, Any]]:
        authority = await client.call("GET", "/api/v1/cluster/ca", dict[str, Any])
        return list(authority["coordinators"])

    columns: dict[str, Callable[[dict[str, Any]], object]] = {
        "coordinator": lambda each: each["coordinator_id"],
        "address": lambda each: each["address"],
        "API port": lambda each: each["api_port"],
        "peer port": lambda each: each["peer_port"],
    }
    print_records(connection.run(work), columns, as_json=as_json, empty="No coordinators.")


async def add_coordinator(client: AsyncClient, record: CoordinatorRecord) -> None:
    """Add a coordinator."""
    body = {
        "id": record.coordinator_id,
        "address": record.address,
        "peer_port": record.peer_port,
        "api_port": record.api_port,
    }
    await client.call("POST", PATH, dict[str, Any], body=body, repeats=True)


async def remove_coordinator(client: AsyncClient, coordinator_id: str) -> None:
    """Remove a coordinator."""
    await client.call("DELETE", f"{PATH}/{quote(coordinator_id, safe='')}", dict[str, Any])


def _shown(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
