"""`filestore gns3 forget`: a project is gone for good. Apart from `prune`: it deletes no backup.

Tested by tests/gns3/test_prune.py.
"""

import click

from ca.errors import Conflict, NotFound
from deploy.base.connection import Connection, connection_options
from deploy.base.printed import printable_name
from deploy.commands.gns3.connecting import address_of, server_option
from deploy.gns3 import journal
from filestore_client import AsyncClient


@click.command()
@click.argument("projects", metavar="PROJECT...", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Every project that the server does not show any more.")
@server_option
@connection_options
def forget(connection: Connection, projects: tuple[str, ...], is_all: bool, server: str) -> None:
    """Mark projects as gone for good, so that they are not missed.

    PROJECT is the name or the id of a project that the last run of backups did not find. Its backups stay,
    and `filestore gns3 restore` finds them.
    """
    if is_all == bool(projects):
        raise click.UsageError("Name the projects, or give --all.")
    identity = address_of(server).identity

    async def work(client: AsyncClient) -> None:
        with journal.opened(identity, client.transport.cluster) as remembered:
            for project_id, project_name in _chosen(remembered, projects).items():
                remembered.forget(project_id)
                click.echo(f"{project_id}  {printable_name(project_name)}  forgotten")

    connection.run(work)


def _chosen(remembered: journal.Journal, named: tuple[str, ...]) -> dict[str, str]:
    """Names by the ids of those that are meant; all for (). Raises NotFound, and Conflict for several."""
    gone = {project_id: memory.name or project_id for project_id, memory in remembered.gone.items()}
    if not named:
        return gone
    chosen: dict[str, str] = {}
    for wanted in named:
        found = [each for each, name in gone.items() if wanted in (each, name)]
        if not found:
            raise NotFound(f"The last run of backups reported no missing project {printable_name(wanted)!r}.")
        if len(found) > 1:
            raise Conflict(f"{len(found)} projects have this name. Give the id of one: {', '.join(found)}")
        chosen[found[0]] = gone[found[0]]
    return chosen
