"""`filestore serve`: other programs' protocols, on this machine, backed by a bucket."""

import click

from deploy.base.connection import Connection, connection_options

RESTIC_ADDRESS = "127.0.0.1:8000"


@click.group()
def serve() -> None:
    """Let other programs store in a bucket: restic."""


@serve.command()
@click.option("--bucket", required=True, help="The name or the id of the bucket that keeps the repositories.")
@click.option(
    "--listen",
    default=RESTIC_ADDRESS,
    show_default=True,
    metavar="ADDRESS:PORT",
    help="Where restic finds it: plain HTTP without a password, so let it be loopback.",
)
@connection_options
def restic(connection: Connection, bucket: str, listen: str) -> None:
    """Serve restic repositories from a bucket.

    It runs until SIGTERM or SIGINT. On the same machine: restic -r rest:http://127.0.0.1:8000/NAME/ init

    What restic writes becomes files of the bucket, which only restic can read.
    """
    from deploy.restic.server import serve as serve_restic

    host, separator, port = listen.rpartition(":")
    if not separator or not port.isdecimal():
        raise click.UsageError(f"--listen: {listen!r} is not ADDRESS:PORT.")
    connection.run(lambda client: serve_restic(client, bucket, host.strip("[]"), int(port)))
