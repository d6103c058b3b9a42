"""`filestore dev`: a whole cluster on this machine."""

from pathlib import Path

import click


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".filestore"),
    show_default=True,
)
@click.option(
    "--ports",
    default="free",
    show_default=True,
    metavar="free|BASE",
    help="Free ports, or those from BASE on. Later starts keep the ports of the first.",
)
def dev(data: Path, ports: str) -> None:
    """Run three coordinators and three nodes on this machine until SIGINT or SIGTERM."""
    from deploy.dev.cluster import serve

    if ports != "free" and not (ports.isdecimal() and 1024 <= int(ports) <= 65000):
        raise click.UsageError("--ports is `free` or a number from 1024 to 65000.")
    serve(data.absolute(), base_port=None if ports == "free" else int(ports))
