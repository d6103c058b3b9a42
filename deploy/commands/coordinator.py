"""`filestore coordinator`: make a cluster, and run one of its coordinators."""

from pathlib import Path

import click
import uvloop

from ca.errors import InvalidRequest
from coordinator.records import CoordinatorRecord

API_PORT = 7441
PEER_PORT = 7442


@click.group()
def coordinator() -> None:
    """Coordinators keep the metadata: three or five of them, or one on a laptop."""


@coordinator.command()
@click.option("--id", "coordinator_id", required=True, help="The name of this coordinator.")
@click.option("--data", type=click.Path(path_type=Path), required=True, help="Its directory.")
@click.option("--cluster", default="filestore", show_default=True, help="The name of the cluster.")
@click.option(
    "--member",
    "members",
    multiple=True,
    metavar="ID=IP[:PEER_PORT[:API_PORT]]",
    help="A coordinator of the cluster, this one included; once for each.",
)
@click.option("--address", metavar="IP", help="The address of the only coordinator, instead of --member.")
@click.option(
    "--replicas", type=click.IntRange(1, 7), default=3, show_default=True, help="Copies of every file."
)
@click.option(
    "--write-quorum",
    type=click.IntRange(1, 7),
    default=None,
    help="Copies that are durable before an upload is acknowledged.  [default: a majority]",
)
@click.option("--development", is_flag=True, help="Allow loopback addresses: a cluster on one machine.")
@click.option(
    "--bundle",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Another coordinator of an existing cluster: the file cluster.bundle of the first.",
)
def init(
    coordinator_id: str,
    data: Path,
    cluster: str,
    members: tuple[str, ...],
    address: str | None,
    replicas: int,
    write_quorum: int | None,
    development: bool,
    bundle: Path | None,
) -> None:
    """Make a new cluster, or with --bundle another coordinator of one that was just made."""
    from coordinator import setup

    if bundle is not None:
        if members or address:
            raise click.UsageError("--bundle already names the members.")
        setup.init_from_bundle(data, bundle, coordinator_id)
        click.echo(f"Ready to run: filestore coordinator run --data {data}")
        return
    if bool(members) == bool(address):
        raise click.UsageError("Give --member once for each coordinator, or --address for a single one.")
    records = [member_of(text) for text in members or (f"{coordinator_id}={address}",)]
    token_file = setup.init_cluster(
        data,
        coordinator_id=coordinator_id,
        cluster=cluster,
        members=records,
        replicas=replicas,
        write_quorum=replicas // 2 + 1 if write_quorum is None else write_quorum,
        development=development,
    )
    click.echo(f"Admin token:          {token_file}")
    click.echo(f"Root certificate:     {data / 'ca.pem'}")
    click.echo(
        f"Root key:             {data / 'root.key'} (move it to a safe place that is not on this machine)"
    )
    if len(records) > 1:
        click.echo(
            f"Other coordinators:   init --bundle with a copy of {data / 'cluster.bundle'} (it is secret)"
        )
    click.echo(f"Ready to run:         filestore coordinator run --data {data}")


@coordinator.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option(
    "--http",
    default=None,
    metavar="127.0.0.1:PORT",
    help="Also serve plain HTTP on loopback, for a proxy on this host.",
)
def run(data: Path, http: str | None) -> None:
    """Run a coordinator until SIGTERM or SIGINT."""
    from coordinator import logs
    from coordinator.server import run_coordinator
    from deploy.coordinator_api import application
    from node.server import loopback_listener

    logs.setup("coordinator")
    uvloop.run(run_coordinator(data, application, http=None if http is None else loopback_listener(http)))


def member_of(text: str) -> CoordinatorRecord:
    """Parse ID=IP[:PEER_PORT[:API_PORT]]; an IPv6 address stands in brackets. Raises InvalidRequest."""
    member_id, separator, rest = text.partition("=")
    if rest.startswith("["):
        address, _, ports = rest[1:].partition("]")
        ports = ports.removeprefix(":")
    else:
        address, _, ports = rest.partition(":")
    numbers = [port for port in ports.split(":") if port]
    if not separator or not member_id or len(numbers) > 2 or not all(port.isdecimal() for port in numbers):
        raise InvalidRequest(f"member: expected ID=IP[:PEER_PORT[:API_PORT]], got {text!r}.")
    peer_port, api_port = [*map(int, numbers), *(PEER_PORT, API_PORT)[len(numbers) :]]
    return CoordinatorRecord(
        coordinator_id=member_id, address=address, peer_port=peer_port, api_port=api_port
    )
