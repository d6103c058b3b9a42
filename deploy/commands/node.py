"""`filestore node`: join a cluster, and run a node.

Tested by tests/cluster/test_node_process.py.
"""

import asyncio
import sys
from pathlib import Path

import click
import uvloop

from deploy.base.addresses import plain_address
from deploy.base.config_file import level_reader, process_options
from deploy.base.connection import read_text
from deploy.base.option_names import names_options
from deploy.base.options import (
    data_option,
    http_option,
    new_data_option,
    run_data_option,
    warn_of_argument,
    web_options,
)
from deploy.commands.node_group import (
    drain,
    forget_instance,
    list_nodes,
    remove,
    revoke,
    show_node,
    undrain,
)
from deploy.commands.node_moves import move, rejoin, set_address
from deploy.commands.work import node_work
from web.web_options import WebOptions

API_PORT = 7443
PEER_PORT = 7444
WORKERS_MAX = 64


@click.group()
def node() -> None:
    """Nodes, which keep the bytes: join, run, ls, drain, remove."""


@node.command()
@click.option("--id", "node_id", required=True, help="The name of this node.")
@new_data_option("Its directory.")
@click.option(
    "--coordinator",
    "coordinator_url",
    required=True,
    metavar="URL",
    help="Any coordinator, for instance https://192.0.2.1:7441.",
)
@click.option("--token", help="The join token. Others on this machine can see it: prefer --token-file.")
@click.option(
    "--token-file", metavar="FILE", help="A file that holds the join token; - reads standard input."
)
@click.option(
    "--address",
    required=True,
    metavar="ADDRESS",
    help="Its address for clients and other nodes: IP or DNS name.",
)
@click.option(
    "--api-port",
    type=click.IntRange(1, 65535),
    default=API_PORT,
    show_default=True,
    help="Its port for clients.",
)
@click.option(
    "--peer-port",
    type=click.IntRange(1, 65535),
    default=PEER_PORT,
    show_default=True,
    help="Its port for other members.",
)
@click.option("--zone", default="", help="Replicas are spread over zones (a rack, a room).")
@click.option(
    "--weight",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="Its share of the files, relative to the weights of other nodes.",
)
@names_options
def join(
    node_id: str,
    data: Path,
    coordinator_url: str,
    token: str | None,
    token_file: str | None,
    address: str,
    api_port: int,
    peer_port: int,
    zone: str,
    weight: int,
) -> None:
    """Set up a node on this machine, and join a cluster.

    `filestore token join` prints a token for it.
    """
    from deploy.setup.running import how_to_run
    from node.membership.join import join as join_cluster

    if (token is None) == (token_file is None):
        raise click.UsageError("Give either --token-file or --token.")
    if token is not None:
        warn_of_argument("the token of --token", "use --token-file")
    if token_file == "-":  # noqa: S105
        token = sys.stdin.readline().strip()
    elif token_file is not None:
        token = read_text(Path(token_file), "the join token")
    assert token is not None
    asyncio.run(
        join_cluster(
            data,
            token=token,
            node_id=node_id,
            coordinator_url=coordinator_url,
            address=plain_address(address),
            api_port=api_port,
            peer_port=peer_port,
            zone=zone,
            weight=weight,
        )
    )
    click.echo(f"Ready to run: {how_to_run('node', data)}")


@node.command()
@data_option("Its directory.")
@click.option(
    "--coordinator",
    "coordinator_url",
    required=True,
    metavar="URL",
    help="A coordinator of the same cluster, for instance https://192.0.2.1:7441.",
)
def reconnect(data: Path, coordinator_url: str) -> None:
    """Set the addresses of the coordinators for a node.

    Use it if all coordinators that the node knew are gone, for example after a restore. Start the node again
    afterwards. If coordinators are replaced one after the other, nodes follow without this command.
    """
    from node.membership.join import reconnect as reconnect_node

    found = asyncio.run(reconnect_node(data, coordinator_url))
    click.echo(f"Coordinators: {', '.join(record.coordinator_id for record in found)}")


@node.command()
@run_data_option()
@http_option
@click.option(
    "--workers",
    type=click.IntRange(1, WORKERS_MAX),
    default=1,
    show_default=True,
    envvar="FILESTORE_WORKERS",
    help="The number of processes that serve clients; one for each core is a good number.",
)
@web_options
@process_options
def run(
    data: Path,
    http: str | None,
    workers: int,
    log_level: str,  # noqa: ARG001  # read again
    web: WebOptions,
) -> None:
    """Run a node until SIGTERM or SIGINT.

    SIGHUP reloads the certificates on disk, and the log level from the file of --config.
    """
    from node.server import run_node

    uvloop.run(run_node(data, http=http, workers=workers, web=web, read_level=level_reader()))


for _command in (
    list_nodes,
    show_node,
    node_work,
    drain,
    undrain,
    revoke,
    forget_instance,
    remove,
    move,
    set_address,
    rejoin,
):
    node.add_command(_command)
