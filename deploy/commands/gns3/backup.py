"""`filestore gns3 backup` and `watch`: projects into the store, once or as time goes by."""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from ca.errors import NotFound
from deploy.base.connection import Connection, connection_options
from deploy.base.failures import FAILURES, Failure, line_of, print_failure
from deploy.base.options import Days, Duration
from deploy.base.output import json_option
from deploy.base.own_files import UserPath
from deploy.base.terminal import ProgressBars
from deploy.commands.gns3.choosing import recipients_of, recipients_option, require_readable, version_options
from deploy.commands.gns3.connecting import (
    bucket_id_of,
    bucket_option,
    chosen_projects,
    configuration_option,
    local_option,
    run_with_server,
    server_option,
)
from deploy.commands.gns3.reset import reset_closed
from deploy.commands.gns3.results import code_of, gone_of, summary, tell, tell_failure
from deploy.gns3 import journal
from deploy.gns3.alarms.metrics import record_unreached, recorded
from deploy.gns3.alarms.reports import report_at_end, store_run_report, told
from deploy.gns3.alarms.rules import OVERDUE_S
from deploy.gns3.backup import BackupResult, BackupRun, BackupWishes
from deploy.gns3.identity import ServerIdentity
from deploy.gns3.images import Bar
from deploy.gns3.local.backup import LocalBackupRun, back_up_server
from deploy.gns3.local.server_files import identity_apart
from deploy.gns3.logins import read_logins
from deploy.gns3.records import LabProject
from deploy.gns3.server import Gns3Server
from deploy.gns3.watch import ABSENT, LASTING, Watch, retry_pauses
from filestore_client import AsyncClient

LATE_S: Final = 2 * 3600  # how much later than at its interval a run of all projects may end
Choose = Callable[[list[LabProject]], Sequence[LabProject] | None]  # None for all that there are
Runs = Callable[[Choose], Awaitable[list[BackupResult]]]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of every run. `local`, `snapshot`, `configuration`: see the options with these names.

    `overdue_after_s`: how old a good backup may be; None for the default of the command. `is_all`: it is of
    all projects, so that they are expected to be backed up from then on.
    """

    bucket: str
    metrics: Path | None
    as_json: bool
    local: Path | None
    configuration: Path | None
    overdue_after_s: float | None
    snapshot: Path | None = None
    is_all: bool = True

    @property
    def expected(self) -> tuple[str, float]:
        """Return the kind of backups that a run of all projects makes, and how old a good one may be."""
        kind = "export" if self.local is None else "full"
        return kind, OVERDUE_S if self.overdue_after_s is None else self.overdue_after_s


metrics_option = click.option(
    "--metrics",
    type=UserPath(exists=True, file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Write metrics to this directory, for the text file collector of node_exporter.",
)
overdue_option = click.option(
    "--overdue-after",
    "overdue_after_s",
    type=Duration(least_s=1),
    metavar="DURATION",
    help="How old a good backup may be before it raises an alarm.  [default: 26h; watch: --every and 2h]",
)
images_option = click.option(
    "--with-images", is_flag=True, help="Store the images that projects name too, each once by its MD5."
)
protect_option = click.option(
    "--protect",
    "protect_days",
    type=Days(least=0, most=3660),
    metavar="DAYS",
    help="Protect the backups from deletion for these days: 30d.  [default: as their bucket has it]",
)


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that all runs have; it receives one `options`."""

    @local_option
    @configuration_option
    @bucket_option
    @metrics_option
    @overdue_option
    @json_option
    @functools.wraps(command)
    def run_command(
        local: Path | None,
        configuration: Path | None,
        bucket: str,
        metrics: Path | None,
        overdue_after_s: int | None,
        as_json: bool,
        **rest: Any,
    ) -> Any:
        options = RunOptions(bucket, metrics, as_json, local, configuration, overdue_after_s)
        return command(options=options, **rest)

    return run_command


@click.command()
@click.argument("projects", metavar="PROJECT...", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Every project of the server that you may see.")
@images_option
@click.option("--on-close", is_flag=True, help="Then keep running, and back up each when it is closed.")
@click.option(
    "--wait-stopped",
    "wait_s",
    type=Duration(),
    default=0,
    metavar="DURATION",
    help="Wait this long for running projects, and back up each when it has stopped.",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Also back up projects that seem to have lost content: see docs/gns3.md.",
)
@click.option(
    "--leave-running", is_flag=True, help="Report running projects, but do not change the exit code for them."
)
@protect_option
@version_options
@click.option(
    "--snapshot",
    type=UserPath(file_okay=False, readable=False, path_type=Path),
    metavar="DIRECTORY",
    help="With --local: that directory in a new snapshot of LVM or ZFS, for projects that run.",
)
@click.option(
    "--server",
    "servers",
    multiple=True,
    metavar="NAME",
    help="A GNS3 server that you are signed in to. Can be given several times.  [default: the only one]",
)
@click.option("--all-servers", is_flag=True, help="Every GNS3 server that you are signed in to.")
@run_options
@connection_options
def backup(
    connection: Connection,
    projects: tuple[str, ...],
    is_all: bool,
    with_images: bool,
    on_close: bool,
    wait_s: int,
    accept_loss: bool,
    leave_running: bool,
    protect_days: int | None,
    given: BackupWishes,
    snapshot: Path | None,
    servers: tuple[str, ...],
    all_servers: bool,
    options: RunOptions,
) -> int:
    """Back up projects of a GNS3 server, or of several.

    PROJECT is a name or an id. A project that has not changed since its last backup is not stored again.

    A running project cannot be exported, nor one with a VirtualBox or VMware node. The command reports such a
    project, backs up the others, and ends with exit code 5. Exit code 10 means that GNS3 left out files of a
    project. After an interruption, the same command continues with the remaining projects. The newest backup
    of an unchanged project gets --message and --tag.

    With --all, the command reports projects of an earlier run that do not exist any more, and a server
    without projects; the exit code is 4. Use `filestore gns3 forget` if a project is gone for good. Several
    servers are backed up one after another. If one fails, the others are still backed up.

    With --local, the command runs on the machine of the server, as root or with CAP_DAC_READ_SEARCH. It reads
    the folders of projects: every file, with owner, mode and links. Running projects are read from snapshots
    of btrfs or copies by reflink, if there are any, or from a given --snapshot. The server may be stopped.
    With --config, the server itself is backed up too.
    """
    if is_all == bool(projects):
        raise click.UsageError("Name the projects, or give --all.")
    names = _server_names(servers, is_all=all_servers)
    if len(names) > 1 and (on_close or options.local is not None or options.configuration is not None):
        raise click.UsageError("--on-close, --local and --config are for one server: name it with --server.")
    if snapshot is not None and options.local is None:
        raise click.UsageError("--snapshot needs --local.")
    options = replace(options, snapshot=snapshot, is_all=is_all)
    wishes = replace(given, with_images=with_images, wait_s=float(wait_s), accept_loss=accept_loss)
    wishes = replace(wishes, protect_days=protect_days)
    require_readable(wishes, options.local)

    def choose(present: list[LabProject]) -> Sequence[LabProject] | None:
        return None if is_all else chosen_projects(present, projects)

    async def work(reached: Gns3Server, client: AsyncClient) -> list[BackupResult]:
        runs = partial(_run, reached, client, wishes=wishes, options=options)
        results = await runs(choose)
        if on_close:
            only = None if is_all else frozenset(each.project.project_id for each in results)
            later = partial(runs, wishes=replace(wishes, message="", tag=""))
            await _watch(reached, later, every_s=None, only=only)
        return results

    runs = list(_runs_of(connection, names, work, options))
    return code_of(runs, leave_running=leave_running)


def _server_names(named: Sequence[str], *, is_all: bool) -> list[str]:
    """The servers to back up, at least one; "" is the only one. Raises UsageError, InvalidRequest."""
    if is_all and named:
        raise click.UsageError("Name the servers, or give --all-servers.")
    return list(dict.fromkeys(sorted(read_logins().servers) if is_all else named)) or [""]


def _runs_of(
    connection: Connection,
    names: Sequence[str],
    work: Callable[[Gns3Server, AsyncClient], Awaitable[list[BackupResult]]],
    options: RunOptions,
) -> Iterator[list[BackupResult] | Failure]:
    """Yield the results of each server. Of several, one that fails is printed, and its failure yielded."""

    async def unreached(error: Failure, identity: ServerIdentity, client: AsyncClient) -> None:
        await _record_unreached(error, identity, client, options)
        raise error

    for name in names:
        if len(names) > 1 and not options.as_json:
            click.echo(f"GNS3 server {name}:")
        try:
            yield run_with_server(connection, name, work, unreached=unreached, local=options.local)
        except FAILURES as error:
            if len(names) == 1:
                raise
            print_failure(name, error)
            yield error


@click.command()
@click.option(
    "--every",
    "every_s",
    type=Duration(least_s=60),
    default="24h",
    show_default=True,
    metavar="DURATION",
    help="Back up all projects at this interval, starting now.",
)
@click.option(
    "--reset",
    "is_reset",
    is_flag=True,
    help="With --local: then put each closed project back to its version with the tag golden, if it has one.",
)
@images_option
@protect_option
@recipients_option
@server_option
@run_options
@connection_options
def watch(
    connection: Connection,
    every_s: int,
    is_reset: bool,
    with_images: bool,
    protect_days: int | None,
    recipients: Path | None,
    server: str,
    options: RunOptions,
) -> None:
    """Back up all projects daily, and each when it is closed.

    It runs until SIGTERM or SIGINT. Failures are reported, and retried the next time. A run that cannot start
    is retried after 10 seconds, and then after pauses of up to an hour. The command ends if the token of the
    cluster or the password of the server is rejected.
    """
    if is_reset and options.local is None:
        raise click.UsageError("--reset: --local is required with it.")
    keys = recipients_of(recipients)
    wishes = BackupWishes(with_images=with_images, protect_days=protect_days, recipients=keys)
    require_readable(wishes, options.local)
    if options.overdue_after_s is None:
        options = replace(options, overdue_after_s=every_s + LATE_S)
    pauses = retry_pauses()

    async def work(reached: Gns3Server, client: AsyncClient) -> None:
        with suppress(*ABSENT):
            await bucket_id_of(client, options.bucket)  # a wrong name ends the watch
        runs = partial(_run, reached, client, wishes=wishes, options=options)
        then = None
        if is_reset and options.local is not None:
            then = partial(reset_closed, reached, client, options.local, as_json=options.as_json)
        await _watch(reached, runs, every_s=float(every_s), only=None, then=then)

    async def unreached(error: Failure, identity: ServerIdentity, client: AsyncClient) -> None:
        await _record_unreached(error, identity, client, options)
        if not isinstance(error, ABSENT):
            raise error
        pause_s = next(pauses)
        tell_failure(error, pause_s)
        await asyncio.sleep(pause_s)

    run_with_server(connection, server, work, unreached=unreached)  # it waits for a server that is stopped


async def _watch(
    reached: Gns3Server,
    runs: Runs,
    *,
    every_s: float | None,
    only: frozenset[str] | None,
    then: Callable[[list[BackupResult]], Awaitable[None]] | None = None,
) -> None:
    """Back up as time goes by, until it is cancelled; `then` is awaited after backups of closed projects.

    Raises errors that only a person can mend.
    """

    async def back_up(project_ids: frozenset[str] | None) -> None:
        def choose(present: list[LabProject]) -> Sequence[LabProject] | None:
            if project_ids is None:
                return None
            return [each for each in present if each.project_id in project_ids]

        results = await runs(choose)
        for each in results:
            if each.status == "failed" and isinstance(each.errors[0], LASTING):
                raise each.errors[0]
        if then is not None and project_ids is not None:
            await then(results)

    click.echo(f"Watching GNS3 server {reached.name}.", err=True)
    await Watch(reached, back_up, every_s=every_s, only=only, tell=tell_failure).run()


async def _record_unreached(
    error: Failure, identity: ServerIdentity, client: AsyncClient, options: RunOptions
) -> None:
    async def report(remembered: journal.Journal) -> None:
        with suppress(*FAILURES):
            bucket_id = await bucket_id_of(client, options.bucket)
            await store_run_report(remembered, identity, client, bucket_id=bucket_id)

    expected = options.expected if options.is_all else None
    cluster = client.transport.cluster
    await record_unreached(identity, cluster, options.metrics, error, expected=expected, report=report)


async def _run(
    reached: Gns3Server,
    client: AsyncClient,
    choose: Choose,
    *,
    wishes: BackupWishes,
    options: RunOptions,
) -> list[BackupResult]:
    """Back up projects, report each when it is through, and store the report of the run.

    Only a run of all reports those that are gone: who names a project asks for that one.
    """
    unreported: list[Failure] = []
    with recorded(reached.identity, client.transport.cluster, options.metrics) as (remembered, results):
        wishes = replace(wishes, bucket_id=await bucket_id_of(client, options.bucket))
        report = partial(store_run_report, remembered, reached.identity, client, bucket_id=wishes.bucket_id)
        async with report_at_end(report, remembered, notes_failure=options.is_all, failed=unreported):
            present = await reached.projects()
            chosen = choose(present)
            remembered.seen(present, at=time.time())
            if chosen is None:
                kind, overdue_after_s = options.expected
                remembered.expect(kind, overdue_after_s=overdue_after_s)
            with ProgressBars() as bars:
                begin = partial(_begin, reached, client, options=options, bar=bars.bar)
                run = begin(remembered, wishes, directory=options.local)
                results += await run.run(present if chosen is None else chosen)
                if options.configuration is not None:
                    results += await _back_up_server(
                        remembered, reached.identity, client, options.configuration, wishes, begin
                    )
            if chosen is None:
                gone = gone_of(remembered)
                for each in gone:
                    tell(each, server=reached.identity, as_json=options.as_json)
                results += gone
                if options.configuration is None:
                    remembered.note_folders(None)
                error = "" if present else told([_no_projects(reached)])
                remembered.note_end(error, at=time.time(), of_all=True)
    if not present:
        tell_failure(_no_projects(reached))
    for failure in unreported:
        click.echo(f"filestore: warning: the report of this run was not stored: {line_of(failure)}", err=True)
    if not options.as_json:
        click.echo(summary(results))
    return results


def _no_projects(reached: Gns3Server) -> NotFound:
    return NotFound(f"GNS3 server {reached.name} lists no projects. Has its user lost a role?")


def _begin(
    reached: Gns3Server,
    client: AsyncClient,
    remembered: journal.Journal,
    wishes: BackupWishes,
    *,
    options: RunOptions,
    bar: Bar,
    directory: Path | None,
) -> BackupRun:
    """Return the run for projects, of whole folders if they have a directory. Print and note each result."""

    def note(result: BackupResult) -> None:
        tell(result, server=reached.identity, as_json=options.as_json)
        kind, _ = options.expected
        error = told(result.errors) if result.status != "running" else ""
        remembered.note_result(result.project, kind=kind, status=result.status, error=error, at=time.time())

    if directory is None:
        return BackupRun(reached, client, remembered, wishes, bar=bar, tell=note)
    snapshot = options.snapshot if directory == options.local else None
    return LocalBackupRun(
        directory, reached, client, remembered, wishes, snapshot=snapshot, bar=bar, tell=note
    )


async def _back_up_server(
    remembered: journal.Journal,
    server: ServerIdentity,
    client: AsyncClient,
    configuration: Path,
    wishes: BackupWishes,
    begin: Callable[..., Any],
) -> list[BackupResult]:
    """Back up the server itself, with a journal of its own: no run misses it. `begin` makes a run."""
    plain = replace(wishes, with_images=False, message="", tag="")
    with journal.opened(identity_apart(server), client.transport.cluster) as apart:

        def begin_folder(place: Path) -> LocalBackupRun:
            run = begin(apart, plain, directory=place)
            assert isinstance(run, LocalBackupRun)
            return run

        results = await back_up_server(configuration.resolve(), begin_folder)
        remembered.note_folders(apart)
    return results
