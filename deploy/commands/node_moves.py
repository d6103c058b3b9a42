"""`filestore node move|set-address|rejoin`: a stopped node on another disk, or at another address.

Tested by tests/cluster/test_members.py.
"""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from deploy.base.addresses import plain_address
from deploy.base.connection import Connection, connection_options, read_text
from deploy.base.option_names import names_options
from deploy.base.options import data_option
from deploy.base.own_files import UserPath
from deploy.base.ownership import hand_over_ownership
from filestore_client import AsyncClient

_to = click.option(
    "--to",
    "target",
    type=UserPath(path_type=Path),
    required=True,
    callback=hand_over_ownership,
    help="Its new directory.",
)


@click.command()
@data_option("The directory of the stopped node.")
@_to
def move(data: Path, target: Path) -> None:
    """Move a stopped node to another directory or disk.

    It keeps its name and address. The content of the old directory is copied and stays there, but no node
    starts from it any more. Run it again to resume after an interruption.
    """
    from deploy.setup.running import how_to_run
    from node.membership.move import move as move_node

    config = move_node(data, target)
    click.echo(f"{config.id} is at {target}: {how_to_run('node', target)}")
    click.echo(f"Delete {data} when it runs and `filestore status` calls it healthy.")


@click.command("set-address")
@data_option("The directory of the stopped node.")
@click.option("--address", required=True, metavar="ADDRESS", help="Its address for clients and other nodes.")
@connection_options
def set_address(connection: Connection, data: Path, address: str) -> None:
    """Change the address of a stopped node. Admins only.

    It stays the same node, with its name and its content, and gets a certificate for the new address. Run it
    again to continue after an interruption. A node with a DNS name does not need this command.
    """
    from ca.identity import check_address
    from deploy.setup.running import how_to_run
    from node.base.config import NodeFiles
    from node.membership.move import stopped, take_address

    address = check_address(plain_address(address), development=True, field="address")
    with stopped(data) as config:

        async def work(client: AsyncClient) -> None:
            path = f"/api/v1/cluster/nodes/{quote(config.id, safe='')}"
            await client.call("PATCH", path, dict[str, Any], body={"address": address})

        connection.run(work)
        asyncio.run(take_address(NodeFiles(data), config, address))
    click.echo(f"{config.id} is at {address}: {how_to_run('node', data)}")


@click.command()
@data_option("The directory of the stopped node.")
@_to
@click.option("--id", "node_id", required=True, help="Its new name: one that no node has had.")
@click.option("--address", required=True, metavar="ADDRESS", help="Its address for clients and other nodes.")
@click.option("--coordinator", "coordinator_url", required=True, metavar="URL", help="Any coordinator.")
@click.option("--token-file", type=UserPath(path_type=Path), required=True, help="A join token.")
@names_options
def rejoin(
    data: Path, target: Path, node_id: str, address: str, coordinator_url: str, token_file: Path
) -> None:
    """Continue a stopped node at another address.

    It joins under a new name, with its content. Ports, zone and weight stay the same. Within one disk nothing
    is copied. Run it again to resume after an interruption.
    """
    from ca.errors import Conflict
    from deploy.setup.running import how_to_run
    from node.base.config import NodeFiles
    from node.membership.join import join
    from node.membership.move import stopped, take_blobs

    with stopped(data) as config:
        old = config
    joined = NodeFiles(target)
    if not joined.config.exists():
        asyncio.run(
            join(
                target,
                token=read_text(token_file, "the join token"),
                node_id=node_id,
                coordinator_url=coordinator_url,
                address=plain_address(address),
                api_port=old.api_port,
                peer_port=old.peer_port,
                zone=old.zone,
                weight=old.weight,
            )
        )
    elif joined.read_config().id != node_id:
        raise Conflict(f"{target} already contains another node.")
    take_blobs(data, target)
    click.echo(f"{node_id} is at {target}: {how_to_run('node', target)}")
    click.echo(f"When it is healthy and {old.id} is down: filestore node remove {old.id} --force")
