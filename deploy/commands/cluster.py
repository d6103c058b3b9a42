"""`filestore setup`: this machine of a cluster; `filestore dev`: a whole cluster on this machine.

Tested by tests/cluster/test_development.py.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from ca.certificates import root_digest
from ca.errors import Conflict
from ca.setuptoken import SetupToken
from deploy.base.addresses import API_PORT, PEER_PORT, plain_address
from deploy.base.connection import read_text
from deploy.base.option_names import names_options
from deploy.base.options import warn_of_argument
from deploy.base.own_files import UserPath
from deploy.commands.node import API_PORT as NODE_API_PORT
from deploy.commands.node import PEER_PORT as NODE_PEER_PORT

if TYPE_CHECKING:
    from deploy.setup.machine import MachineState, SetupResult

MACHINES_MAX = 7
TEXT_CHARS_MAX = 4096
TTL_S = 1800
_PORT = click.IntRange(1, 65535)


@click.command()
@click.option(
    "--join",
    "join_text",
    is_flag=False,
    flag_value="-",
    metavar="",
    help="Join a cluster with a setup token that its first machine printed; it works once. The token is read"
    " from standard input, or asked for on a terminal.",
)
@click.option(
    "--join-file",
    type=UserPath(path_type=Path),
    help="A file with that token.",
)
@click.option(
    "--address",
    metavar="ADDRESS",
    help="The address of this machine: IP or DNS name.  [default: its address for connections to others]",
)
@click.option("--name", help="The name of its coordinator and its node.  [default: the machine's]")
@click.option("--cluster", default="filestore", show_default=True, help="The name of a new cluster.")
@click.option("--node-only", is_flag=True, help="Set up a node on this machine, and no coordinator.")
@click.option("--no-start", is_flag=True, help="Start nothing, and print the commands to run.")
@click.option(
    "--machines",
    type=click.IntRange(1, MACHINES_MAX),
    default=3,
    show_default=True,
    help="Of a new cluster: print a line for each of the others.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 7),
    default=3,
    show_default=True,
    help="Of a new cluster: copies of every file.",
)
@click.option(
    "--data",
    type=UserPath(path_type=Path),
    default=Path("/var/lib/filestore"),
    show_default=True,
    help="Parent of the directories `coordinator` and `node`, created if missing.",
)
@click.option("--zone", default="", help="Replicas are spread over zones (a rack, a room).")
@click.option("--peer-port", type=_PORT, default=PEER_PORT, show_default=True, help="Of the coordinator.")
@click.option("--api-port", type=_PORT, default=API_PORT, show_default=True, help="Of the coordinator.")
@click.option("--node-peer-port", type=_PORT, default=NODE_PEER_PORT, show_default=True, help="Of the node.")
@click.option("--node-api-port", type=_PORT, default=NODE_API_PORT, show_default=True, help="Of the node.")
@click.option("--development", is_flag=True, help="Allow loopback addresses: a cluster on one machine.")
@names_options
def setup(
    join_text: str | None,
    join_file: Path | None,
    address: str | None,
    name: str | None,
    cluster: str,
    node_only: bool,
    no_start: bool,
    machines: int,
    replicas: int,
    data: Path,
    zone: str,
    peer_port: int,
    api_port: int,
    node_peer_port: int,
    node_api_port: int,
    development: bool,
) -> None:
    """Set up this machine as a coordinator and a node.

    The first machine creates a cluster, and prints a command for each other machine, which adds it to the
    cluster. Run it again to resume after an interruption.
    """
    from deploy.setup.machine import find_members, set_up
    from deploy.setup.plan import MachinePlan
    from deploy.setup.steps import NewCluster

    text, found = _text(join_text, join_file), find_members(data)
    is_new = not found.name and found.unfinished_setup is None
    if not text and is_new and not node_only and _may_ask():
        question = "The text that the first machine printed, or Enter for a new cluster"
        text = click.prompt(question, "", hide_input=True, show_default=False)
    token = SetupToken.parse(text) if text else None
    if node_only and token is None and not found.node:
        raise click.UsageError("--node-only: a node joins a cluster with the text of --join.")
    if token is None and is_new and _may_ask() and cluster_is_default():
        cluster = click.prompt("The name of the cluster", cluster)
    plan = MachinePlan(
        name=_name(
            name, found, becomes_coordinator=not node_only and (token is not None or found.is_joining)
        ),
        address=plain_address(address or found.address or _address(token)),
        data=data,
        peer_port=peer_port,
        api_port=api_port,
        node_peer_port=node_peer_port,
        node_api_port=node_api_port,
        zone=zone,
    ).canonical()
    if address and found.address not in ("", plan.address):
        raise Conflict(
            f"--address: this machine's members have the address {found.address}. To change it, use "
            "`filestore coordinator rebuild --address` and `filestore node set-address`."
        )
    cluster_asked = NewCluster(name=cluster, replicas=replicas, development=development)
    _tell(
        set_up(plan, found, token, cluster_asked, node_only=node_only, start=not no_start, machines=machines)
    )


def _name(given: str | None, found: "MachineState", *, becomes_coordinator: bool) -> str:
    """The name of the members that are made. Raises Conflict if this machine's have another one, UsageError.

    A coordinator joins a node under another name after a restore: no name of a coordinator is used again.
    """
    from deploy.setup.plan import own_name

    is_free = becomes_coordinator and found.coordinator is None
    if given and found.name not in ("", given) and not is_free:
        raise Conflict(
            f"--name: the members of this machine are named {found.name}, which cannot change. Leave --name "
            "out."
        )
    name = given or found.name or own_name()
    if not name:
        raise click.UsageError("--name: the name of this machine is not valid here. Give another one.")
    return name


def cluster_is_default() -> bool:
    """Whether no name of the cluster was given."""
    source = click.get_current_context().get_parameter_source("cluster")
    return source is ParameterSource.DEFAULT


def _may_ask() -> bool:
    """Return whether a user can read a question and answer: a program may run this on its own terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _text(join_text: str | None, join_file: Path | None) -> str:
    """The setup token, "" without one."""
    if join_text is not None and join_file is not None:
        raise click.UsageError("Give either --join or --join-file.")
    if join_file is not None:
        return read_text(join_file, "the setup token")
    if join_text == "-" and sys.stdin.isatty():
        join_text = str(
            click.prompt("The text that the first machine printed", hide_input=True, err=True)
        ).strip()
    elif join_text == "-":
        join_text = sys.stdin.readline(TEXT_CHARS_MAX).strip()
    elif join_text:
        warn_of_argument("the text of --join", "leave it out, and paste it where it is asked for")
    if join_text == "":
        raise click.UsageError("--join: the text is empty.")
    return join_text or ""


def _address(token: SetupToken | None) -> str:
    """Return this machine's address on the route to the coordinator or other machines, or ask for it."""
    from deploy.setup.plan import own_address

    found = own_address() if token is None else own_address(token.address)
    if token is None and _may_ask():
        question = "The address or DNS name at which others reach this machine"
        return str(click.prompt(question, found or None))
    if not found:
        raise click.UsageError("--address: give the address at which others reach this machine.")
    click.echo(f"Others reach this machine at {found}. If that is wrong, give --address.")
    return found


def _tell(done: "SetupResult") -> None:
    """Print what was created, and what is left to do."""
    from coordinator.storage.config import CoordinatorFiles

    coordinator, files = done.coordinator, CoordinatorFiles(done.plan.coordinator_data)
    roles = f"node {done.node.id}"
    if coordinator is not None:
        roles = f"coordinator {coordinator.id} and {roles}"
    click.echo(f"This machine is {roles} of the cluster {done.node.cluster}: {done.plan.node_url}")
    if done.is_first:
        if files.admin_token.exists():
            click.echo(f"Admin token:          {files.admin_token}")
        click.echo(f"Root certificate:     {files.root}")
        click.echo(f"Its fingerprint:      {root_digest(files.root.read_text('ascii'))}")
        if files.root_key.exists():
            click.echo(f"Root key:             {files.root_key} (move it to a safe place off this machine)")
    click.echo(f"Console:              {done.plan.node_url}/console/")
    if done.is_first and files.admin_token.exists():
        click.echo(f"Sign in there:        paste the admin token, as root: `cat {files.admin_token}`")
    else:
        click.echo("Sign in there:        with a token that an administrator made for you")
    click.echo(f"Sign in elsewhere:    filestore login {done.plan.node_url}")
    if done.commands:
        click.echo("The processes of the setup have ended. Run these commands under your service manager:")
        for command in done.commands:
            click.echo(f"  {command}")
    if done.lines:
        which = "the other machine" if len(done.lines) == 1 else "each other machine, one of these"
        click.echo(f"On {which}, within {TTL_S // 60} minutes. Each line is secret and works once:")
        for line in done.lines:
            click.echo(f"  filestore setup --join <<< '{line}'")
    elif done.is_first:
        click.echo(f"For one more machine: filestore token setup --data {files.data}")


@click.command()
@click.option(
    "--data",
    type=UserPath(file_okay=False, path_type=Path),
    default=Path(".filestore"),
    show_default=True,
    help="The directory of the cluster's data; the next start uses it again.",
)
@click.option(
    "--ports",
    default="free",
    show_default=True,
    metavar="free|BASE",
    help="Free ports, or those from BASE on. Later starts keep the ports of the first.",
)
def dev(data: Path, ports: str) -> None:
    """Run a whole cluster on this machine, to try it out.

    Three coordinators and three nodes, until SIGINT or SIGTERM. Other commands find it automatically if they
    are run in the same directory.
    """
    from deploy.dev_cluster import serve

    if ports != "free" and not (ports.isdecimal() and 1024 <= int(ports) <= 65000):
        raise click.UsageError("--ports must be `free` or a number from 1024 to 65000.")
    serve(data.absolute(), base_port=None if ports == "free" else int(ports))
