"""The health of the cluster, for people, for scripts, and as an exit code.

`filestore status` shows its members, `filestore damaged` content that is complete on no node.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import click

from deploy.base.connection import Connection, connection_options, read_text
from deploy.base.failures import NEEDS_ATTENTION, claims_of, exit_code_of, line_of
from deploy.base.output import cold_line, json_option, moment, print_json, print_table, size
from deploy.base.tables import TableConsole, table_console
from filestore_client import AsyncClient
from filestore_client.base.errors import FilestoreError, Unavailable
from metadata.model.jobs import amounts_of
from runtime.timestamps import rfc3339
from runtime.wording import counted, duration

_COORDINATOR_COLUMNS: Final = ("coordinator", "role", "term", "commit", "applied", "lag", "clock")
_NODE_COLUMNS: Final = (
    *("node", "url", "state", "heard", "disk", "free", "total", "replicas", "uploads", "clock"),
)
CLOCK_SHOWN_MS_MIN: Final = 1000
DAMAGED: Final = "/api/v1/cluster/damaged"
RANGES_SHOWN_MAX: Final = 5
EXIT_CODES: Final = {
    "healthy": 0,
    "degraded": NEEDS_ATTENTION,
    "unavailable": exit_code_of(Unavailable("")),
}


@click.command()
@click.option("--watch", is_flag=True, help="Show it again and again, until it is interrupted.")
@click.option(
    "--every", type=click.FloatRange(0.2), default=2.0, show_default=True, help="Seconds, with --watch."
)
@json_option
@connection_options
def status(connection: Connection, watch: bool, every: float, as_json: bool) -> int:
    """Show coordinators, nodes, jobs, and problems.

    Exit code 0 if the cluster is healthy, 10 if something needs attention, 6 if it rejects changes or
    uploads, or does not answer, 3 if the token lacks the permission.
    """

    async def work(client: AsyncClient) -> tuple[dict[str, Any], float]:
        return await client.cluster.status(), client.transport.time.now_s()

    while watch:
        try:
            answer, now_s = connection.run(work)
        except FilestoreError as error:
            table_console().clear()
            click.echo(f"filestore: {line_of(error)}", err=True)
        else:
            table_console().clear()  # nothing in a pipe
            _show(answer, now_s, connection, as_json=as_json)
        time.sleep(every)
    answer, now_s = connection.run(work)
    _show(answer, now_s, connection, as_json=as_json)
    return EXIT_CODES[answer["health"]]


def _show(answer: dict[str, Any], now_s: float, connection: Connection, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    print_status(answer, at_s=now_s)
    ends_at_s = claims_of(read_text(connection.token_file, "the token"))[1]
    if ends_at_s > now_s:
        click.echo(f"Your token expires {moment(rfc3339(int(ends_at_s * 1000)))}.")


@click.command()
@json_option
@connection_options
def damaged(connection: Connection, as_json: bool) -> int:
    """List files that no node holds whole, and lost bytes. Admins only.

    Lists content that is damaged on every node that holds it. If some bytes are lost, all others can still be
    downloaded, by ranges. Listed content without lost bytes is being restored from its intact parts. Exit
    code 10 if any bytes are lost, otherwise 0.
    """

    async def work(client: AsyncClient) -> dict[str, Any]:
        return await client.call("GET", DAMAGED, dict[str, Any])

    answer = connection.run(work)
    contents = answer["contents"]
    if as_json:
        print_json(answer)
    elif not contents:
        click.echo("All content is complete on some node.")
    else:
        print_table(("file", "name", "size", "lost bytes", "copies on"), _contents(contents))
    return NEEDS_ATTENTION if any(content["lost_bytes"] for content in contents) else 0


def print_status(answer: dict[str, Any], *, at_s: float) -> None:
    """Tables of coordinators, nodes and running jobs, each problem, and a line of totals."""
    console = table_console()
    console.print_table(_COORDINATOR_COLUMNS, _coordinators(answer))
    console.print_table(_NODE_COLUMNS, _nodes(answer))
    if answer.get("runs"):
        console.print_table(("job", "run", "on", "since", "so far", "left"), _runs(answer["runs"], at_s))
    for line in _problems(answer):
        _line(console, line)
    if oldest := _unscrubbed(answer["nodes"]):
        _line(console, oldest)
    if cold := cold_line(answer["nodes"]):
        _line(console, cold)
    if replicas := _replicas(answer.get("replicas") or {}):
        _line(console, replicas)
    if held := _held(answer.get("held") or {}):
        _line(console, held)
    health = answer.get("health") or "healthy"
    _line(
        console,
        f"{answer['cluster']}: {health if health == 'healthy' else health.upper()},"
        f" {counted(answer['files'], 'file', 'files')}, {counted(answer['blobs'], 'blob', 'blobs')},"
        f" {size(answer['blob_bytes'])}{_trash(answer)}",
    )


def _trash(answer: Mapping[str, Any]) -> str:
    """Return the deleted files that can be restored; "" for none."""
    files = answer.get("trash_files") or 0
    return (
        f", {counted(files, 'file', 'files')} ({size(answer['trash_bytes'])}) in the trash" if files else ""
    )


def progress_of(run: Mapping[str, Any], at_s: float) -> tuple[str, str]:
    """Return the progress of a run, and the estimated time for the rest; "" if unknown."""
    result = run["result"] if isinstance(run["result"], dict) else {}
    shown = ", ".join(f"{name} {value}" for name, value in result.items() if isinstance(value, int))
    amounts = amounts_of(str(run.get("job_name", "")), result)
    started_s = datetime.fromisoformat(run["started_at"]).timestamp()
    if amounts.left is None or amounts.done <= 0 or at_s <= started_s:
        return shown, ""
    return shown, duration((at_s - started_s) / amounts.done * amounts.left)


def _coordinators(answer: dict[str, Any]) -> list[Sequence[str]]:
    return [
        (
            *(str(member.get(key, "")) for key in ("id", "role", "term", "commit", "applied", "lag")),
            _clock(member),
        )
        for member in answer["coordinators"]
    ]


def _nodes(answer: dict[str, Any]) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    for node in answer["nodes"]:
        heard_ms_ago, has_reported = node.get("heard_ms_ago", 0), node.get("total_bytes", 0) > 0
        rows.append(
            (
                str(node["id"]),
                str(node["url"]),
                str(node["state"]),
                f"{duration(heard_ms_ago / 1000)} ago" if heard_ms_ago else "",
                str(node.get("disk", "")) if has_reported else "",  # an unknown state is left open
                size(node.get("free_bytes", 0)) if has_reported else "",
                size(node["total_bytes"]) if has_reported else "",
                str(node.get("replicas", "")),
                str(node.get("uploads", "")) if has_reported else "",
                _clock(node),
            )
        )
    return rows


def _runs(runs: list[dict[str, Any]], at_s: float) -> list[Sequence[str]]:
    return [
        (run["job_name"], run["run_id"], run["node_id"], moment(run["started_at"]), *progress_of(run, at_s))
        for run in runs
    ]


def _problems(answer: dict[str, Any]) -> list[str]:
    """A line for each."""
    lines = []
    for finding in answer["findings"]:
        details = [f"since {moment(finding['since'])}"] if finding.get("since") else []
        details += [f"runbook: {finding['runbook']}"] if finding.get("runbook") else []
        more = f" ({', '.join(details)})" if details else ""
        lines.append(f"! {finding['problem']}{more}")
    return lines


def _replicas(replicas: dict[str, Any]) -> str:
    """Say what is wrong with copies, "" where nothing is."""
    wrong = [f"short {blobs} lack {missing}" for missing, blobs in replicas.get("short", {}).items()]
    kinds = ("last", "absent", "damaged", "incomplete", "lost", "unreferenced", "doomed")
    wrong += [f"{name} {replicas[name]}" for name in kinds if replicas.get(name)]
    return f"replicas: {', '.join(wrong)}" if wrong else ""


def _held(held: dict[str, Any]) -> str:
    """Say what snapshots keep on the disks, "" for nothing."""
    told = []
    if held.get("blobs"):
        many = counted(held["snapshots"], "snapshot", "snapshots")
        told.append(f"{many} of the metadata keep {size(held['bytes'])} of deleted files")
    if held.get("evicted"):
        many = counted(held["evicted"], "snapshot has", "snapshots have")
        told.append(f"{many} lost content early, as the disks were almost full")
    return "; ".join(told)


def _unscrubbed(nodes: list[dict[str, Any]]) -> str:
    """Return the node whose replicas were read from the disk the longest time ago."""
    known = [(node["scrubbed_since"], node["id"]) for node in nodes if node.get("scrubbed_since")]
    return f"oldest unscrubbed: on {min(known)[1]}, since {moment(min(known)[0])}" if known else ""


def _clock(member: dict[str, Any]) -> str:
    """Format a clock offset. Offsets within a round trip are not shown, as they cannot be measured."""
    offset_ms = member.get("clock_offset_ms")
    if offset_ms is None:
        return ""
    if abs(offset_ms) < CLOCK_SHOWN_MS_MIN:
        return "right"
    return f"{duration(abs(offset_ms) / 1000)} {'ahead' if offset_ms > 0 else 'behind'}"


def _line(console: TableConsole, text: str) -> None:
    console.print(text, highlight=False)


def _contents(contents: list[dict[str, Any]]) -> list[Sequence[str]]:
    return [
        (
            file["file_uuid"],
            file["filename"],
            size(content["size_bytes"]),
            _lost(content),
            ", ".join(content["nodes"]),
        )
        for content in contents
        for file in content["files"]
    ]


def _lost(content: dict[str, Any]) -> str:
    """Which bytes, as a Range header names them."""
    ranges = content["lost_ranges"]
    if not ranges:
        return "none"
    shown = ", ".join(f"{each['first']}-{each['last']}" for each in ranges[:RANGES_SHOWN_MAX])
    return f"{shown} and more" if len(ranges) > RANGES_SHOWN_MAX else shown
