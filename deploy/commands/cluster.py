"""`filestore dev`: a whole cluster on this machine."""

from pathlib import Path

import click


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".filestore"),
    show_default=True,
    help="Where everything lies; the next start goes on with it.",
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

    Three coordinators and three nodes, until SIGINT or SIGTERM. Other commands find it by themselves when
    they are run in the same directory.
    """
    from deploy.dev.cluster import serve

    if ports != "free" and not (ports.isdecimal() and 1024 <= int(ports) <= 65000):
        raise click.UsageError("--ports is `free` or a number from 1024 to 65000.")
    serve(data.absolute(), base_port=None if ports == "free" else int(ports))
