"""`filestore gns3 prune`: which backups stay, project by project."""

import asyncio
from collections.abc import Sequence

import click

from deploy.base.connection import Connection, connection_options
from deploy.base.failures import FAILURES, NEEDS_ATTENTION, exit_code_of, line_of, worse_of
from deploy.base.output import json_option, moment, print_json
from deploy.base.printed import printable_name
from deploy.commands.gns3.choosing import from_option
from deploy.gns3.chains import chains_of, of_projects, of_server
from deploy.gns3.damage import Damages
from deploy.gns3.prune import DAMAGED, OUT_OF_ORDER, KeepRules, reasons_to_keep
from deploy.gns3.stored import StoredBackup, stored_backups
from deploy.gns3.watch import Patience
from filestore_client import AsyncClient
from filestore_client.base.errors import Protected


@click.command()
@click.argument("projects", metavar="PROJECT...", nargs=-1)
@click.option("--keep-last", "last", type=click.IntRange(0), default=0, metavar="N", help="The newest N.")
@click.option(
    "--keep-daily",
    "daily",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="The newest of each of N days that have backups.",
)
@click.option(
    "--keep-weekly",
    "weekly",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="The newest of each of N weeks that have backups; weeks start on Monday.",
)
@click.option(
    "--keep-monthly",
    "monthly",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="The newest of each of N months that have backups.",
)
@click.option("--dry-run", is_flag=True, help="Show what would go and what would stay, and delete nothing.")
@from_option
@json_option
@connection_options
def prune(
    connection: Connection,
    projects: tuple[str, ...],
    last: int,
    daily: int,
    weekly: int,
    monthly: int,
    dry_run: bool,
    source: str,
    as_json: bool,
) -> int:
    """Delete old backups of projects, and keep some.

    A backup stays if any rule keeps it, as with restic. The rules apply to each project of each server
    separately. PROJECT is a name or an id; the default is all. Only your own backups are considered.

    A damaged backup counts for no rule, and one whose date does not fit the order in which backups were
    stored counts for --keep-last only. Either stays and is reported; the exit code is 10 then. If the backups
    of a project cannot be checked, all of them stay; the others are pruned, and the exit code is that of the
    failure. A protected backup stays, and so does one with a tag; they are listed as such.
    """
    rules = KeepRules(last=last, daily=daily, weekly=weekly, monthly=monthly)
    if rules.keep_nothing:
        raise click.UsageError(
            "Give at least one of --keep-last, --keep-daily, --keep-weekly, --keep-monthly."
        )

    async def work(client: AsyncClient) -> int:
        damages, patience, code = Damages(client), Patience(connection.deadline_s), 0
        chains = chains_of(await stored_backups(client), (await client.whoami()).user_id)
        for chain in of_projects(of_server(chains, source), projects):
            try:
                decided = await reasons_for(chain.backups, rules, damages)
            except FAILURES as error:
                if await patience.is_over(error, client.whoami):
                    raise
                named = f"{printable_name(chain.project_name)} of server {chain.server.shown}"
                click.echo(f"filestore: {named}: all its backups are kept: {line_of(error)}", err=True)
                code = worse_of(code, exit_code_of(error))
                continue
            for backup, reasons in zip(chain.backups, decided, strict=True):
                done = await _carry_out(client, backup, reasons, dry_run=dry_run, as_json=as_json)
                code = worse_of(code, done)
        return code

    return connection.run(work)


async def _carry_out(
    client: AsyncClient, backup: StoredBackup, reasons: list[str], *, dry_run: bool, as_json: bool
) -> int:
    """Delete a backup that nothing keeps, and print what became of it; return the exit code."""
    if not reasons and backup.file.protected_until:
        reasons = [f"protected until {moment(backup.file.protected_until)}"]
    try:
        if not reasons and not dry_run:
            await client.files.delete(backup.file.file_uuid)
    except Protected as error:  # since it was listed
        reasons = [line_of(error)]
    except FAILURES as error:
        click.echo(f"filestore: {backup.file.file_uuid}: {line_of(error)}", err=True)
        return exit_code_of(error)
    _tell(backup, reasons, dry_run=dry_run, as_json=as_json)
    if needs_a_person := {DAMAGED, OUT_OF_ORDER} & {*reasons}:
        told = f"{backup.file.file_uuid} is {needs_a_person.pop()}, and stays"
        click.echo(f"filestore: warning: {told}: see docs/gns3-nightly.md", err=True)
        return NEEDS_ATTENTION
    return 0


async def reasons_for(backups: Sequence[StoredBackup], rules: KeepRules, damages: Damages) -> list[list[str]]:
    """Apply `reasons_to_keep`, and check the backups that would stay in the place of deleted ones."""
    times = [backup.made_at.astimezone() for backup in backups]
    tags = [backup.version for backup in backups]
    damaged: set[int] = set()
    checked: set[int] = set()
    while True:
        reasons = reasons_to_keep(times, rules, damaged=damaged, tags=tags)
        unchecked = [number for number, kept in enumerate(reasons) if kept and number not in checked]
        if all(reasons) or not unchecked:
            return reasons
        broken = await asyncio.gather(*(damages.is_broken(backups[number]) for number in unchecked))
        damaged |= {number for number, is_broken in zip(unchecked, broken, strict=True) if is_broken}
        checked |= {*unchecked}


def _tell(backup: StoredBackup, reasons: list[str], *, dry_run: bool, as_json: bool) -> None:
    file, of = backup.file, backup.tag.server
    if as_json:
        row = {"file_uuid": file.file_uuid, "project_id": file.project_id, "name": file.project_name}
        row |= {"server": of.name, "server_id": of.id}
        print_json(
            row | {"created_at": file.created_at, "kept_by": reasons, "deleted": not reasons and not dry_run}
        )
        return
    done = f"kept: {', '.join(reasons)}" if reasons else ("would go" if dry_run else "deleted")
    named = f"{file.file_uuid}  {printable_name(file.project_name)}  {moment(file.created_at)}"
    click.echo(f"{named}  {of.shown}  {done}")
