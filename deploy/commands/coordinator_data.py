"""Commands on the directory of one coordinator.

The commands are `filestore coordinator bundle|renew-intermediate|renew-certificate|snapshot|restore|rebuild`.

Tested by tests/cluster/test_coordinator_files.py.
"""

import base64
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ca.errors import InvalidRequest
from deploy.base.addresses import METAVAR, record_at
from deploy.base.connection import Connection, connection_options
from deploy.base.option_names import names_options
from deploy.base.options import data_option, new_data_option
from deploy.base.output import moment
from deploy.base.own_files import UserPath
from deploy.commands.coordinator_group import add_coordinator, remove_coordinator
from filestore_client import AsyncClient
from runtime.timestamps import rfc3339
from runtime.wording import counted, duration

if TYPE_CHECKING:
    from coordinator.admin.restore import SnapshotFacts

SHOWN_MAX: Final = 12

_data = data_option("The directory of a coordinator.")
_output = click.option(
    "--output",
    "-o",
    type=UserPath(path_type=Path),
    required=True,
    help="The file to write; only you can read it. It must not exist.",
)
_root_key = click.option(
    "--root-key",
    type=UserPath(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="The root key that `init` made, from where you keep it.",
)


@click.command()
@_data
@_output
def bundle(data: Path, output: Path) -> None:
    """Write a bundle, to make another coordinator from.

    It is secret: delete it when that is done.
    """
    from coordinator.admin import restore

    restore.write_bundle(data, output)
    click.echo(f"Secret:               {output}")
    click.echo("On the other machine: filestore coordinator init --bundle FILE --id ID --address ADDRESS")


@click.command("renew-intermediate")
@_data
@_root_key
@connection_options
def renew_intermediate(connection: Connection, data: Path, root_key: Path) -> None:
    """Sign a new intermediate certificate with the root key.

    It signs the certificates of members for a year. The root key does not leave this machine, and the new
    certificate works only for this cluster. The coordinators use it within a minute, nodes when their
    certificates are renewed, within five days.
    """
    from coordinator.admin import setup

    made = setup.new_intermediate(data, root_key)
    body = {"certificate": made.pem, "wrapped_key": base64.b64encode(made.wrapped).decode("ascii")}

    async def work(client: AsyncClient) -> str:
        path = "/api/v1/cluster/intermediates"  # the same certificate again does no harm
        answer = await client.call("POST", path, dict[str, str], body=body, repeats=True)
        return answer["expires_at"]

    click.echo(f"It signs until {connection.run(work)}. Now remove the root key from this machine again.")


@click.command("renew-certificate")
@_data
@_root_key
def renew_certificate(data: Path, root_key: Path) -> None:
    """Give a stopped coordinator a certificate for a week.

    Use it if the intermediate certificate has expired, as the cluster cannot renew certificates then. When a
    majority of the coordinators runs again, use `renew-intermediate`.
    """
    from coordinator.admin import setup
    from deploy.setup.running import how_to_run

    setup.renew_certificate(data, root_key)
    click.echo(f"Ready to run: {how_to_run('coordinator', data)}")


@click.command()
@_data
@_output
def snapshot(data: Path, output: Path) -> None:
    """Copy all metadata to one file, while it runs.

    Its sha256 is written to another file in the same directory. Keep a bundle with them, as a restore needs
    it too.
    """
    from coordinator.admin import restore

    taken = restore.write_snapshot(data, output)
    click.echo(f"{output}: the state at index {taken.index} of the log")


@click.command()
@click.option(
    "--snapshot",
    "snapshot_path",
    type=UserPath(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="A file of `filestore coordinator snapshot`.",
)
@click.option(
    "--bundle",
    "bundle_path",
    type=UserPath(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="A bundle of the same cluster.",
)
@new_data_option("The new directory.")
@click.option("--id", "coordinator_id", required=True, help="A name that no coordinator ever had.")
@click.option("--address", required=True, metavar=METAVAR, help="Its address.")
@names_options
def restore(snapshot_path: Path, bundle_path: Path, data: Path, coordinator_id: str, address: str) -> None:
    """Make a new cluster of one coordinator from a snapshot.

    Use it if a majority of the coordinators is lost for good. None of the old coordinators may run any more.
    Changes after the snapshot are lost. Add other coordinators to the new one afterwards.
    """
    from coordinator.admin import restore
    from coordinator.storage.config import CoordinatorFiles
    from deploy.setup.running import how_to_run
    from runtime.file_digests import digest_beside

    if not (digest := digest_beside(snapshot_path)).exists():
        click.echo(f"{digest} is missing, so some damage to the snapshot cannot be detected.", err=True)
    own = record_at(coordinator_id, address)
    for line in restored_facts(restore.snapshot_facts(snapshot_path), time.time()):
        click.echo(line)
    token_file = restore.restore(data, snapshot=snapshot_path, bundle_path=bundle_path, own=own)
    click.echo("Changes after the snapshot are lost. Revoke again everyone who was revoked after it.")
    click.echo("Join tokens and invitation links from before the restore are revoked: make new ones.")
    none = "none: the user admin is disabled, use the token of another admin"
    click.echo(f"Admin token:  {token_file or none}")
    if not CoordinatorFiles(data).credential_path.exists():
        click.echo("The intermediate certificate has expired. First sign a certificate for this coordinator:")
        click.echo(f"    filestore coordinator renew-certificate --data {data} --root-key FILE")
        click.echo("When it runs, `filestore coordinator renew-intermediate` does the rest.")
    click.echo(f"Ready to run: {how_to_run('coordinator', data)}")


def restored_facts(facts: "SnapshotFacts", at_s: float) -> list[str]:
    """Say what a snapshot brings back, and whether its directory has newer ones."""
    taken_s = facts.taken_at_ms / 1000
    age = f", {duration(at_s - taken_s)} ago" if at_s > taken_s else ""
    nodes = f"{counted(len(facts.nodes), 'node', 'nodes')} ({', '.join(facts.nodes[:SHOWN_MAX]) or 'none'})"
    lines = [
        f"Snapshot:     taken {moment(rfc3339(facts.taken_at_ms))}{age}, entry {facts.log_index} of the log",
        f"Brings back:  {counted(facts.files, 'file', 'files')}, {nodes}",
        f"Replaces:     the coordinators {', '.join(facts.coordinators)}",
    ]
    if facts.newer:
        many = counted(len(facts.newer), "newer snapshot", "newer snapshots")
        lines.append(f"NOT THE NEWEST: its directory has {many}, the newest is {facts.newer[-1]}")
    return lines


@click.command()
@_data
@click.option("--id", "coordinator_id", required=True, help="A new name: no coordinator may have had it.")
@click.option("--address", metavar=METAVAR, help="Its new address.  [default: its old one]")
@connection_options
def rebuild(connection: Connection, data: Path, coordinator_id: str, address: str | None) -> None:
    """Create a damaged coordinator again from its peers.

    It gets a new name and an empty state. It is removed from the group under its old name, and added under
    the new one. Log and state are set aside in its directory. It must not run during this; run it afterwards.
    After an interruption, run the same command to continue.
    """
    import msgspec

    from coordinator.admin import restore
    from coordinator.storage.config import CoordinatorFiles
    from deploy.setup.running import how_to_run

    files = CoordinatorFiles(data)
    earlier = files.read_config()
    if address is None:
        own = msgspec.structs.replace(earlier.own, coordinator_id=coordinator_id)
    else:
        own = record_at(coordinator_id, address)
    if earlier.id != coordinator_id:
        restore.check_rebuildable(files, own)
        connection.run(lambda client: remove_coordinator(client, earlier.id))
        aside = restore.begin_again(data, own)
        click.echo(f"Set aside:    {aside}")
    elif not restore.has_begun_again(data):
        raise InvalidRequest(
            f"--id: this coordinator is already named {coordinator_id}. It needs a new name."
        )
    connection.run(lambda client: add_coordinator(client, own))
    click.echo(f"Ready to run: {how_to_run('coordinator', data)}")
