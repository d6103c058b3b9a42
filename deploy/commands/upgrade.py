"""`filestore upgrade check`: whether a member may be stopped now to be upgraded, and which is the next."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import click
from msgspec import Struct

from deploy.base.connection import Connection, connection_options
from deploy.base.failures import NEEDS_ATTENTION
from deploy.base.output import json_option, print_json, print_table
from filestore_client import AsyncClient
from metadata.model.jobs import COMPARE, DRAIN, REBALANCE, REPAIR, SNAPSHOT
from runtime.wording import counted, duration

SNAPSHOT_AGE_S_MAX: Final = 86_400.0
MEMBERS_MIN: Final = 3  # of each role: with fewer, no other member can replace one that restarts
IN_THE_WAY: Final = tuple(
    job.name for job in (REPAIR, DRAIN, REBALANCE, COMPARE)
)  # jobs that need every node, or move replicas


class UpgradeMember(Struct, frozen=True, kw_only=True):
    """A coordinator or node, with what it runs. `rules` 0: a version that does not tell, or no answer."""

    id: str
    role: str
    version: str
    rules: int
    leads: bool = False


class UpgradeVerdict(Struct, frozen=True, kw_only=True):
    """The output of `filestore upgrade check`. `rules`: those in force, 0 if unknown."""

    safe: bool
    problems: list[str]
    notes: list[str]
    rules: int
    members: list[UpgradeMember]
    next_step: str


@click.group()
def upgrade() -> None:
    """Upgrades of a running cluster: check."""


@upgrade.command()
@json_option
@connection_options
def check(connection: Connection, as_json: bool) -> int:
    """Check whether a member may be stopped now, and which one is next.

    It is safe if every member is healthy, every blob has its replicas, no job moves replicas, and the last
    snapshot of the metadata is younger than a day. Run it again before each machine. Exit code 0 if it is
    safe, otherwise 10. For admins only.
    """

    async def work(client: AsyncClient) -> UpgradeVerdict:
        status = await client.cluster.status()
        jobs = await client.call("GET", "/api/v1/jobs", dict[str, Any])
        return judge(status, jobs, at_s=client.transport.time.now_s())

    verdict = connection.run(work)
    if as_json:
        print_json(verdict)
    else:
        _show(verdict)
    return 0 if verdict.safe else NEEDS_ATTENTION


def judge(status: Mapping[str, Any], jobs: Mapping[str, Any], *, at_s: float) -> UpgradeVerdict:
    """Decide from the cluster's status and its list of jobs, as in the API."""
    problems = [*_of_members(status), *_of_replicas(status), *_of_snapshot(jobs, at_s)]
    members = _members(status)
    return UpgradeVerdict(
        safe=not problems,
        problems=problems,
        notes=_notes(members),
        rules=status.get("rules", 0),
        members=members,
        next_step=_next_step(members, status.get("rules", 0), is_safe=not problems),
    )


def _of_members(status: Mapping[str, Any]) -> list[str]:
    found = list(status["problems"])
    if not found and status["health"] != "healthy":
        found.append(f"The cluster is {status['health']}.")
    for each in status["coordinators"]:
        if each["membership"] != "voter":
            found.append(f"The coordinator {each['id']} has no vote yet.")
        elif each.get("replication") in ("probe", "snapshot"):
            found.append(f"The coordinator {each['id']} is still catching up.")
    draining = (node["id"] for node in status["nodes"] if node["state"] == "draining")
    return [*found, *(f"The node {node_id} is draining." for node_id in draining)]


def _of_replicas(status: Mapping[str, Any]) -> list[str]:
    short = sum((status.get("replicas") or {}).get("short", {}).values())
    is_told = bool(status["problems"])  # in the words of the status, as far as any can be made
    found = [f"{counted(short, 'blob lacks', 'blobs lack')} replicas."] * (short > 0 and not is_told)
    running = sorted({run["job_name"] for run in status.get("runs", ())} & set(IN_THE_WAY))
    return [
        *found,
        *(f"The job {name} is running. `filestore job watch {name}` shows its progress." for name in running),
    ]


def _of_snapshot(jobs: Mapping[str, Any], at_s: float) -> list[str]:
    """Check the age of the newest snapshot; copies that were sent elsewhere by hand are not known here."""
    take = f"take one (`filestore job run {SNAPSHOT.name} --wait`)."
    run = next((job.get("last_run") for job in jobs["jobs"] if job["job_name"] == SNAPSHOT.name), None)
    if run is None:
        return [f"No snapshot of the metadata was ever created: {take}"]
    if run["status"] != "completed":
        return [f"The last snapshot of the metadata is {run['status']}: {take}"]
    age_s = at_s - datetime.fromisoformat(run["completed_at"]).timestamp()
    if age_s > SNAPSHOT_AGE_S_MAX:
        return [f"The last snapshot of the metadata is {duration(age_s)} old: {take}"]
    return []


def _members(status: Mapping[str, Any]) -> list[UpgradeMember]:
    """Coordinators first, each role in the order of the cluster."""
    return [
        UpgradeMember(
            id=each["id"],
            role=role,
            version=each.get("version", ""),
            rules=each.get("rules", 0),
            leads=role == "coordinator" and each["id"] == status["leader"],
        )
        for role, of_role in (("coordinator", status["coordinators"]), ("node", status["nodes"]))
        for each in of_role
    ]


def _notes(members: list[UpgradeMember]) -> list[str]:
    counts = {role: sum(each.role == role for each in members) for role in ("coordinator", "node")}
    stops = {"coordinator": "changes and reads of records", "node": "uploads"}
    return [
        f"With {counted(count, role, f'{role}s')}, {stops[role]} may pause while one restarts."
        for role, count in counts.items()
        if count < MEMBERS_MIN
    ]


def _next_step(members: list[UpgradeMember], rules: int, *, is_safe: bool) -> str:
    if not is_safe:
        return "First fix the problems listed above, then run the check again."
    newest = max(each.rules for each in members)
    leaders = ", ".join(each.id for each in members if each.leads)
    older = sorted((each for each in members if each.rules < newest), key=lambda each: each.leads)
    if older:
        names = ", ".join(each.id for each in older)
        return (
            f"Upgrade one of the older members: {names}. Until the last of them is upgraded, you can "
            f"go back. Then the rules {newest} come into force, and older versions are rejected."
        )
    if rules < newest:
        return f"Wait: every member supports the rules {newest}, which come into force within seconds."
    return (
        "All members support the same rules. Upgrade one machine after the other, and the machine of "
        f"the leading coordinator ({leaders}) last."
    )


def _show(verdict: UpgradeVerdict) -> None:
    rows = (
        (each.id, f"{each.role}, leads" if each.leads else each.role, each.version, str(each.rules or ""))
        for each in verdict.members
    )
    print_table(("member", "role", "version", "knows rules"), list(rows))
    click.echo(f"Rules in force: {verdict.rules or 'not reported by this member'}")
    for problem in verdict.problems:
        click.echo(f"! {problem}")
    for note in verdict.notes:
        click.echo(f"note: {note}")
    click.echo(
        "It is safe to stop one member now." if verdict.safe else "It is NOT safe to stop a member now."
    )
    click.echo(verdict.next_step)
