"""`filestore gns3 prune`: which backups stay, project by project."""

import click

from deploy.base.connection import Connection, connection_options
from deploy.base.failures import FAILURES, exit_code_of, line_of
from deploy.base.output import json_option, moment, print_json
from deploy.base.printed import printable_name
from deploy.gns3.prune import KeepRules, reasons_to_keep
from deploy.gns3.stored import StoredBackup, all_backups, label_of
from filestore_client import AsyncClient


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
    help="The same of weeks, from Monday.",
)
@click.option(
    "--keep-monthly", "monthly", type=click.IntRange(0), default=0, metavar="N", help="The same of months."
)
@click.option("--dry-run", is_flag=True, help="Show what would go and what would stay, and delete nothing.")
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
    as_json: bool,
) -> int:
    """Delete old backups of projects, and keep some.

    What any rule keeps stays, as with restic. The rules are for each project on its own; PROJECT is a name
    or an id, and without one all are meant. Only your own backups are looked at, and no other files.
    """
    rules = KeepRules(last=last, daily=daily, weekly=weekly, monthly=monthly)
    if rules.keep_nothing:
        raise click.UsageError(
            "Say what is to stay: --keep-last, --keep-daily, --keep-weekly, --keep-monthly."
        )

    async def work(client: AsyncClient) -> int:
        owner_id = (await client.whoami()).user_id
        code = 0
        for backups in (await all_backups(client, owner_id=owner_id)).values():
            file = backups[-1].file
            wanted = {file.project_id, file.project_name}
            if projects and not wanted & {*projects, *map(label_of, projects)}:
                continue
            times = [each.made_at.astimezone() for each in backups]
            for backup, reasons in zip(backups, reasons_to_keep(times, rules), strict=True):
                try:
                    if not reasons and not dry_run:
                        await client.files.delete(backup.file.file_uuid)
                except FAILURES as error:
                    click.echo(f"filestore: {backup.file.file_uuid}: {line_of(error)}", err=True)
                    code = code or exit_code_of(error)
                else:
                    _tell(backup, reasons, dry_run=dry_run, as_json=as_json)
        return code

    return connection.run(work)


def _tell(backup: StoredBackup, reasons: list[str], *, dry_run: bool, as_json: bool) -> None:
    file = backup.file
    if as_json:
        row = {"file_uuid": file.file_uuid, "project_id": file.project_id, "name": file.project_name}
        print_json(
            row | {"created_at": file.created_at, "kept_by": reasons, "deleted": not reasons and not dry_run}
        )
        return
    done = f"kept: {', '.join(reasons)}" if reasons else ("would go" if dry_run else "deleted")
    click.echo(f"{file.file_uuid}  {printable_name(file.project_name)}  {moment(file.created_at)}  {done}")
