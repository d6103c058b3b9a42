"""`filestore serve`: other programs' protocols over a bucket. Apart from `files`: it runs until ended.

Tested by tests/cluster/test_restic_gateway.py.
"""

from pathlib import Path

import click

from deploy.base.connection import Connection, connection_options
from deploy.base.own_files import UserPath

RESTIC_ADDRESS = "127.0.0.1:8000"


@click.group()
def serve() -> None:
    """Let other programs store files in a bucket: restic."""


@serve.command()
@click.option("--bucket", required=True, help="The name or the id of the bucket that keeps the repositories.")
@click.option(
    "--listen",
    default=RESTIC_ADDRESS,
    show_default=True,
    metavar="ADDRESS:PORT|unix:PATH",
    help="The address for restic: plain HTTP on a port, or a socket that only you can use.",
)
@click.option(
    "--password-file",
    type=UserPath(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Lines USER:PASSWORD. A missing file is created, with a random password."
    "  [default: restic.password beside config.toml; none for a socket]",
)
@click.option(
    "--no-auth", is_flag=True, help="Serve every client that can reach the address, without a password."
)
@click.option("--append-only", is_flag=True, help="Delete nothing but locks: no forget, no prune.")
@connection_options
def restic(
    connection: Connection,
    bucket: str,
    listen: str,
    password_file: Path | None,
    no_auth: bool,
    append_only: bool,
) -> None:
    """Serve restic repositories from a bucket.

    It runs until SIGTERM or SIGINT, with your token: its clients can read, add and delete the files in the
    bucket. So a password is required. It is created at the first start, and the settings for restic are
    printed.

    restic's files become files of the bucket, which only restic can read. docs/restic.md is the guide.
    """
    from deploy.restic.listening import place_of
    from deploy.restic.server import Gateway
    from deploy.restic.server import serve as serve_restic
    from filestore_client.base.contexts import config_directory

    if no_auth and password_file is not None:
        raise click.UsageError("Give either --password-file or --no-auth.")
    place = place_of(listen)
    if password_file is None and not no_auth and place.path is None:
        password_file = config_directory() / "restic.password"
    gateway = Gateway(bucket=bucket, place=place, password_file=password_file, is_append_only=append_only)
    connection.run(lambda client: serve_restic(client, connection, gateway))
