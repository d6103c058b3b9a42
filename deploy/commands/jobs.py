"""`filestore job run|ls|show|watch|cancel`: background jobs, through the API."""

import asyncio
from typing import Any
from urllib.parse import quote

import click

from deploy.base.connection import Connection, connection_options
from deploy.base.lookup import is_uuid
from deploy.base.output import json_option, json_text, moment, print_json, print_table
from deploy.commands.status import progress_of
from filestore_client import AsyncClient
from filestore_client.base.errors import NotFound
from runtime.wording import duration

PATH = "/api/v1/jobs"
POLL_S = 0.2
WATCH_S = 1.0
_run = click.argument("named", metavar="RUN_ID|JOB")


@click.group()
def job() -> None:
    """Background jobs: run, ls, show, watch, cancel. Admins only."""


@job.command()
@click.argument("name")
@click.option("--wait", is_flag=True, help="Wait until it has ended. Exit code 1 when it failed.")
@click.option("--node-id", default=None, help="Only this node: for drain, scrub and compare.")
@click.option(
    "--grace",
    type=click.IntRange(0),
    default=None,
    metavar="SECONDS",
    help="For gc: keep content without files for this long, instead of a day.",
)
@click.option(
    "--yes-really",
    is_flag=True,
    help="Override the safety limit: a job stops if it would delete a tenth or more.",
)
@json_option
@connection_options
def run(
    connection: Connection,
    name: str,
    wait: bool,
    node_id: str | None,
    grace: int | None,
    yes_really: bool,
    as_json: bool,
) -> int:
    """Start a job, and print the id of its run.

    `filestore job ls` shows the jobs by NAME.
    """
    given = {"node_id": node_id, "grace_s": grace, "yes_really": yes_really or None}
    body = {key: value for key, value in given.items() if value is not None}

    async def work(client: AsyncClient) -> dict[str, Any]:
        begun = await client.call("POST", f"{PATH}/{quote(name, safe='')}", dict[str, Any], body=body)
        if not as_json:
            click.echo(begun["run_id"])
        return await wait_for_end(client, begun["run_id"]) if wait else begun

    found = connection.run(work)
    if as_json:
        print_json(found)
    elif wait:
        click.echo(_outcome(found))
    return 1 if found["status"] == "failed" else 0


@job.command()
@json_option
@connection_options
def ls(connection: Connection, as_json: bool) -> None:
    """List the jobs, each with its newest run.

    `filestore job show JOB` shows all of that run.
    """

    async def work(client: AsyncClient) -> dict[str, Any]:
        return await client.call("GET", PATH, dict[str, Any])

    answer = connection.run(work)
    if as_json:
        print_json(answer)
    else:
        print_jobs(answer["jobs"])


def print_jobs(jobs: list[dict[str, Any]]) -> None:
    """Print the jobs as the API lists them, a line each; the description is wrapped on a narrow terminal."""
    rows = []
    for each in jobs:
        last = each.get("last_run") or {}
        every = duration(each["schedule_s"]) if each["schedule_s"] else ""
        began = moment(str(last.get("started_at", "")))
        summary = each["description"].partition(". ")[0].rstrip(".")
        rows.append((each["job_name"], every, str(last.get("status", "")), began, summary))
    print_table(("job", "every", "last run", "began", "description"), rows)


@job.command()
@_run
@json_option
@connection_options
def show(connection: Connection, named: str, as_json: bool) -> int:
    """Show a run, or the newest run of a job. Exit code 1 if it failed."""

    async def work(client: AsyncClient) -> dict[str, Any]:
        return await get_run(client, await _run_id(client, named))

    found = connection.run(work)
    if as_json:
        print_json(found)
    else:
        click.echo(json_text(found, indent=2))
    return 1 if found["status"] == "failed" else 0


@job.command()
@_run
@json_option
@connection_options
def watch(connection: Connection, named: str, as_json: bool) -> int:
    """Follow a run, or the newest run of a job, to its end.

    Exit code 1 when it failed.
    """

    async def work(client: AsyncClient) -> dict[str, Any]:
        run_id = await _run_id(client, named)
        shown = ""
        while True:
            found = await get_run(client, run_id)
            so_far, left = progress_of(found, client.transport.time.now_s())
            line = f"{found['job_name']} {found['status']}: {so_far}{f', {left} left' if left else ''}"
            if line != shown:
                print_json(found) if as_json else click.echo(line)
                shown = line
            if found["status"] != "running":
                return found
            await asyncio.sleep(WATCH_S)

    found = connection.run(work)
    return 1 if found["status"] == "failed" else 0


@job.command()
@_run
@json_option
@connection_options
def cancel(connection: Connection, named: str, as_json: bool) -> None:
    """Cancel a run in progress, or the newest run of a job.

    Its finished work stays.
    """

    async def work(client: AsyncClient) -> dict[str, Any]:
        run_id = await _run_id(client, named)
        return await client.call("DELETE", f"{PATH}/runs/{quote(run_id, safe='')}", dict[str, Any])

    found = connection.run(work)
    print_json(found) if as_json else click.echo(_outcome(found))


async def _run_id(client: AsyncClient, named: str) -> str:
    """Return the id of a run that is named by it, or by its job. Raises NotFound if the job has not run."""
    if is_uuid(named):
        return named
    async for each in client.jobs.list():
        if each.job_name == named and each.last_run is not None:
            return each.last_run.run_id
    raise NotFound(f"There is no run of a job named {named!r}.")


def _outcome(run: dict[str, Any]) -> str:
    return f"{run['status']} {json_text(run['result'])}"


async def wait_for_end(client: AsyncClient, run_id: str) -> dict[str, Any]:
    """The run, once it has ended."""
    while (found := await get_run(client, run_id))["status"] == "running":
        await asyncio.sleep(POLL_S)
    return found


async def get_run(client: AsyncClient, run_id: str) -> dict[str, Any]:
    """The run as it is now."""
    return await client.call("GET", f"{PATH}/runs/{quote(run_id, safe='')}", dict[str, Any])
