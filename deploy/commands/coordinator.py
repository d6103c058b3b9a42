"""`filestore coordinator`: create a cluster, and run one of its coordinators.

Tested by tests/cluster/test_coordinators.py.
"""

from pathlib import Path

import click
import uvloop
from click.core import ParameterSource

from ca.certificates import root_digest
from deploy.base.addresses import METAVAR, member_of, record_at
from deploy.base.config_file import level_reader, process_options
from deploy.base.option_names import names_options
from deploy.base.options import http_option, new_data_option, run_data_option, web_options
from deploy.base.own_files import UserPath
from deploy.commands.coordinator_data import (
    bundle,
    rebuild,
    renew_certificate,
    renew_intermediate,
    restore,
    snapshot,
)
from deploy.commands.coordinator_group import add, list_coordinators, remove, status, transfer_leader
from deploy.commands.work import coordinator_work
from web.web_options import WebOptions


@click.group()
def coordinator() -> None:
    """Coordinators, which keep the metadata: init, run, ls, add.

    There are three or five of them in a cluster, or one on a laptop.
    """


@coordinator.command()
@click.option("--id", "coordinator_id", required=True, help="The name of this coordinator.")
@new_data_option("Its directory.")
@click.option("--cluster", default="filestore", show_default=True, help="The name of the cluster.")
@click.option(
    "--member",
    "members",
    multiple=True,
    metavar=f"ID={METAVAR}",
    help="A coordinator of the cluster, this one included; once for each.",
)
@click.option(
    "--address",
    metavar=METAVAR,
    help="Its address: of the only coordinator of a new cluster, or of a later one with --bundle.",
)
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
    "bundle_path",
    type=UserPath(exists=True, dir_okay=False, path_type=Path),
    help="Another coordinator of an existing cluster: cluster.bundle of the first, or a later bundle.",
)
@names_options
def init(
    coordinator_id: str,
    data: Path,
    cluster: str,
    members: tuple[str, ...],
    address: str | None,
    replicas: int,
    write_quorum: int | None,
    development: bool,
    bundle_path: Path | None,
) -> None:
    """Create a new cluster, or another coordinator of one.

    With --bundle, the coordinator joins an existing cluster. If it was named with --member when the cluster
    was created, it needs no other options. A later one needs --address: start it, then add it with `filestore
    coordinator add`.
    """
    from coordinator.admin import setup
    from deploy.setup.running import how_to_run

    if bundle_path is not None:
        if given := _given("members", "cluster", "replicas", "write_quorum", "development"):
            raise click.UsageError(f"--bundle already contains these settings: {', '.join(given)}.")
        own = None if address is None else record_at(coordinator_id, address)
        setup.init_from_bundle(data, bundle_path, coordinator_id, own)
        click.echo(f"Ready to run: {how_to_run('coordinator', data)}")
        return
    if bool(members) == bool(address):
        raise click.UsageError("Give --member once for each coordinator, or --address for a single one.")
    records = [record_at(coordinator_id, address)] if address else [member_of(text) for text in members]
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
    click.echo(f"Its fingerprint:      {root_digest((data / 'ca.pem').read_text('ascii'))}")
    click.echo(
        f"Root key:             {data / 'root.key'} (move it to a safe place that is not on this machine)"
    )
    if len(records) > 1:
        click.echo(
            f"Other coordinators:   init --bundle with a copy of {data / 'cluster.bundle'} (it is secret)"
        )
    click.echo(f"Ready to run:         {how_to_run('coordinator', data)}")


def _given(*names: str) -> list[str]:
    """Return the options among `names` that are on the command line."""
    context = click.get_current_context()
    return [
        option.opts[0]
        for option in context.command.params
        if option.name in names and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    ]


@coordinator.command()
@run_data_option()
@http_option
@click.option(
    "--down-after",
    type=click.FloatRange(1, 7 * 86_400),
    default=None,
    metavar="SECONDS",
    help="Silence after which a node counts as down, as `down_after_s` of coordinator.json.",
)
@web_options
@process_options
def run(
    data: Path,
    http: str | None,
    down_after: float | None,
    log_level: str,  # noqa: ARG001  # read again
    web: WebOptions,
) -> None:
    """Run a coordinator until SIGTERM or SIGINT.

    SIGHUP reloads the certificates on disk, and the log level from the file of --config.
    """
    from coordinator.server import run_coordinator
    from deploy.coordinator_api import application
    from web.listener import loopback_listener

    plain = None if http is None else loopback_listener(http)
    serving = run_coordinator(
        data, application, http=plain, down_after_s=down_after, web=web, read_level=level_reader()
    )
    uvloop.run(serving)


for _command in (
    list_coordinators,
    add,
    remove,
    transfer_leader,
    status,
    coordinator_work,
    bundle,
    renew_certificate,
    renew_intermediate,
    snapshot,
    restore,
    rebuild,
):
    coordinator.add_command(_command)
