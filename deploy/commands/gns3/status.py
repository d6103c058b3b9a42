"""`filestore gns3 status`: the alarms about backups of labs, by the reports in the store.

Tested by tests/gns3/test_alarms.py.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence

import click

from ca.errors import NotFound
from deploy.base.connection import Connection, connection_options
from deploy.base.failures import NEEDS_ATTENTION
from deploy.base.output import json_option, moment, print_json
from deploy.base.printed import printable_name
from deploy.commands.gns3.choosing import from_option, owner_id_of, owner_option
from deploy.gns3.alarms.reports import ServerReports, stored_reports
from deploy.gns3.alarms.rules import DAMAGED, Alarm, alarms_of
from deploy.gns3.chains import BackupChain, chains_of
from deploy.gns3.damage import Damages
from deploy.gns3.stored import stored_backups
from filestore_client import AsyncClient


@click.command()
@from_option
@owner_option
@json_option
@connection_options
def status(connection: Connection, source: str, owner: str, as_json: bool) -> int:
    """Show what needs attention about backups of labs.

    It reads the reports that runs of all projects and `verify` have stored, and asks no GNS3 server. The exit
    code is 10 if something needs attention, and 4 if there is no report.
    """

    async def work(client: AsyncClient) -> int:
        owner_id = await owner_id_of(client, owner)
        reports = {
            server_id: each
            for server_id, each in (await stored_reports(client, owner_id)).items()
            if source in ("", server_id, each.run.server if each.run is not None else "")
        }
        if not any(each.run for each in reports.values()):
            raise NotFound("No report is stored: run `filestore gns3 backup --all`.")
        backups = await stored_backups(client)
        labs, damages = chains_of(backups, owner_id, mix_kinds=True), Damages(client)
        is_damaged = await asyncio.gather(*(damages.is_damaged(each.newest.file) for each in labs))
        damaged = [lab for lab, is_so in zip(labs, is_damaged, strict=True) if is_so]
        newest = {chain.newest.file.file_uuid for chain in chains_of(backups, owner_id)}
        count = 0
        for server_id, each in reports.items():
            alarms = alarms_of(each.run, each.checks, newest, now_s=time.time())
            alarms += _of_damage([lab for lab in damaged if lab.server.id == server_id])
            _tell(server_id, each, alarms, as_json=as_json)
            count += len(alarms)
        return NEEDS_ATTENTION if count else 0

    return connection.run(work)


def _of_damage(damaged: Sequence[BackupChain]) -> Iterator[Alarm]:
    for chain in damaged:
        yield Alarm(
            code=DAMAGED,
            text="No node holds the newest backup whole",
            project_id=chain.project_id,
            name=chain.project_name,
        )


def _tell(server_id: str, reports: ServerReports, alarms: Sequence[Alarm], *, as_json: bool) -> None:
    run = reports.run
    if as_json:
        print_json(
            {
                "server_id": server_id,
                "server": run.server if run is not None else "",
                "kind": run.kind if run is not None else "",
                "ended_at": run.ended_at if run is not None else "",
                "projects": {uuid: each.good_at for uuid, each in run.projects.items()} if run else {},
                "alarms": [
                    {
                        "code": each.code,
                        "project_id": each.project_id,
                        "name": each.name,
                        "since": each.since,
                        "text": each.text,
                    }
                    for each in alarms
                ],
            }
        )
        return
    if run is None:
        click.echo(f"{server_id}: no run of all projects has stored a report.")
    else:
        ended = printable_name(moment(run.ended_at)) or "never"
        kind = "full backups" if run.kind == "full" else "exports"
        name = printable_name(run.server)
        click.echo(f"{name} ({server_id}): {len(run.projects)} projects, {kind}, last run {ended}")
    for each in alarms:
        about = f"{printable_name(each.name or each.project_id)}: " if each.project_id else ""
        since = f" since {printable_name(moment(each.since))}" if each.since else ""
        click.echo(f"  {printable_name(each.code)}: {about}{printable_name(each.text)}{since}")
