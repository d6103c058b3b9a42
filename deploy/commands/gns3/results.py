"""Print the results of `filestore gns3 backup` and `watch`, and choose the exit code.

Tested by tests/gns3/test_backup.py.
"""

from collections.abc import Sequence

import click
from msgspec import to_builtins

from ca.errors import Conflict, NotFound
from deploy.base.failures import FAILURES, NEEDS_ATTENTION, Failure, exit_code_of, line_of, reason_of
from deploy.base.output import moment, print_json, size
from deploy.base.printed import printable_name
from deploy.gns3.alarms.metrics import STATUSES
from deploy.gns3.backup import BackupResult
from deploy.gns3.identity import ServerIdentity
from deploy.gns3.journal import Journal
from deploy.gns3.records import LabProject
from runtime.timestamps import rfc3339
from runtime.wording import duration


def gone_of(remembered: Journal) -> list[BackupResult]:
    """A result for each project that the server does not show any more."""
    return [
        BackupResult(
            LabProject(project_id=project_id, name=memory.name or project_id),
            "gone",
            errors=(
                NotFound(
                    "The GNS3 server has not listed it since "
                    f"{moment(rfc3339(int(memory.gone_at * 1000)))}. If it is gone for good, run "
                    "`filestore gns3 forget`. Its backups are kept."
                ),
            ),
        )
        for project_id, memory in remembered.gone.items()
    ]


def tell(result: BackupResult, *, server: ServerIdentity, as_json: bool) -> None:
    """Print the result of a project."""
    if as_json:
        print_json(
            {
                "server": server.name,
                "server_id": server.id,
                "project_id": result.project.project_id,
                "name": result.project.name,
                "status": result.status,
                "file_uuid": result.file_uuid,
                "size_bytes": result.size_bytes,
                "images": result.images,
                "consistency": result.consistency,
                "missing": to_builtins(result.missing),
                "errors": [line_of(error) for error in result.errors],
            }
        )
        return
    name = printable_name(result.project.name)
    if result.status == "stored":
        read = f"  full, from {result.consistency}" if result.consistency in ("snapshot", "copies") else ""
        read = "  full" if result.consistency == "stopped" else read
        click.echo(f"{result.file_uuid}  {name}  {size(result.size_bytes)}{read}")
    elif result.status == "unchanged":
        click.echo(f"{result.file_uuid}  {name}  unchanged")
    if result.images:
        click.echo(f"{name}: {result.images} images stored")
    if result.missing.count:
        click.echo(f"filestore: warning: {name}: the backup lacks {result.missing.told}", err=True)
    for error in result.errors:
        said = "is running and was skipped" if result.status == "running" else line_of(error)
        click.echo(f"filestore: {name}: {said}", err=True)


def tell_failure(error: Failure | OSError, retry_s: float = 0.0) -> None:
    """Print an error on one line, and after how long what failed is tried again."""
    if isinstance(error, OSError):
        told = f"{error.filename or 'system'}: {reason_of(error)}"
    else:
        told = line_of(error)
    if retry_s:
        told = f"{told.rstrip('.')}. Retrying in {duration(retry_s)}."
    click.echo(f"filestore: {told}", err=True)


def summary(results: Sequence[BackupResult]) -> str:
    """Return the last line of a run: how many projects have which result."""
    counts = {status: sum(each.status == status for each in results) for status in STATUSES}
    stored_bytes = sum(each.size_bytes for each in results)
    told = [f"{counts['stored']} stored ({size(stored_bytes)})", f"{counts['unchanged']} unchanged"]
    told += [f"{counts[status]} {status}" for status in STATUSES[2:] if counts[status]]
    return f"{len(results)} projects: {', '.join(told)}."


def code_of(runs: Sequence[Sequence[BackupResult] | Failure], *, leave_running: bool) -> int:
    """The code of the first failure; then that of a project that runs, then that of files left out.

    A project that is gone is a failure, and so is a server that shows none, or has no results.
    """
    failed: list[Failure] = []
    results: list[BackupResult] = []
    for run in runs:
        if isinstance(run, FAILURES):
            failed.append(run)
            continue
        failed += [] if run else [NotFound("")]
        failed += [error for each in run if each.status != "running" for error in each.errors]
        results += run
    if failed:
        return exit_code_of(failed[0])
    if not leave_running and any(each.status == "running" for each in results):
        return exit_code_of(Conflict(""))
    return NEEDS_ATTENTION if any(each.missing.count for each in results) else 0
