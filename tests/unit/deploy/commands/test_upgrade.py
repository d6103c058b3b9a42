"""What is in the way of an upgrade, and which step is next."""

from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from deploy.commands.upgrade import SNAPSHOT_AGE_S_MAX, judge
from metadata.model.jobs import REPAIR

NOW_S = 1_800_000_000.0
NAMES = ("1", "2", "3")
STATUS: dict[str, Any] = {
    "cluster": "lab",
    "leader": "c2",
    "rules": 6,
    "health": "healthy",
    "problems": [],
    "replicas": {"short": {}},
    "runs": [],
    "coordinators": [
        {"id": f"c{name}", "membership": "voter", "replication": "replicate", "version": "0.2.0", "rules": 6}
        for name in NAMES
    ],
    "nodes": [{"id": f"n{name}", "state": "healthy", "version": "0.2.0", "rules": 6} for name in NAMES],
}


def jobs(*, age_s: float = 60.0, status: str = "completed") -> dict[str, Any]:
    at = datetime.fromtimestamp(NOW_S - age_s, UTC).isoformat()
    return {"jobs": [{"job_name": "snapshot", "last_run": {"status": status, "completed_at": at}}]}


def changed(*path: str | int, value: object) -> dict[str, Any]:
    status = deepcopy(STATUS)
    found: Any = status
    for step in path[:-1]:
        found = found[step]
    found[path[-1]] = value
    return status


def test_healthy_cluster_with_a_fresh_snapshot_may_be_upgraded_the_leader_last() -> None:
    verdict = judge(STATUS, jobs(), at_s=NOW_S)
    assert (verdict.safe, verdict.problems, verdict.notes, verdict.rules) == (True, [], [], 6)
    assert verdict.next_step.endswith("and the machine of the leading coordinator (c2) last.")
    assert [each.id for each in verdict.members if each.leads] == ["c2"]


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("problems",), ["The node n3 is down."], "The node n3 is down."),
        (("health",), "degraded", "The cluster is degraded."),
        (("coordinators", 0, "membership"), "learner", "The coordinator c1 has no vote yet."),
        (("coordinators", 0, "replication"), "snapshot", "The coordinator c1 is still catching up."),
        (("nodes", 1, "state"), "draining", "The node n2 is draining."),
        (("replicas", "short"), {"1": 2, "2": 1}, "3 blobs lack replicas."),
        (
            ("runs",),
            [{"job_name": REPAIR.name}],
            "The job repair is running. `filestore job watch repair` shows its progress.",
        ),
    ],
)
def test_what_is_in_the_way_is_named(path: tuple[str | int, ...], value: object, told: str) -> None:
    verdict = judge(changed(*path, value=value), jobs(), at_s=NOW_S)
    assert (verdict.safe, verdict.problems) == (False, [told])
    assert verdict.next_step == "First fix the problems listed above, then run the check again."


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ({"jobs": [{"job_name": "snapshot"}]}, "No snapshot of the metadata was ever created"),
        (jobs(age_s=SNAPSHOT_AGE_S_MAX + 3600), "The last snapshot of the metadata is 25 h old"),
        (jobs(status="failed"), "The last snapshot of the metadata is failed"),
    ],
)
def test_snapshot_that_is_missing_old_or_failed_is_in_the_way(known: dict[str, Any], told: str) -> None:
    (problem,) = judge(STATUS, known, at_s=NOW_S).problems
    assert problem.startswith(told)
    assert "`filestore job run snapshot --wait`" in problem


def test_members_of_an_older_version_are_next_and_the_way_back_is_open_until_the_last() -> None:
    status = changed("rules", value=5)
    del status["coordinators"][1]["rules"], status["nodes"][2]["rules"]
    verdict = judge(status, jobs(), at_s=NOW_S)
    assert verdict.safe
    assert "Upgrade one of the older members: n3, c2." in verdict.next_step
    assert "Then the rules 6 come into force, and older versions are rejected" in verdict.next_step


def test_rules_that_every_member_knows_are_waited_for() -> None:
    assert judge(changed("rules", value=5), jobs(), at_s=NOW_S).next_step.startswith("Wait: every member")


def test_member_of_an_older_version_that_is_asked_tells_no_rules() -> None:
    status = msgspec.to_builtins(STATUS)
    status.pop("rules")
    for each in (*status["coordinators"], *status["nodes"]):
        each.pop("rules", None), each.pop("version", None)
    verdict = judge(status, jobs(), at_s=NOW_S)
    assert (verdict.safe, verdict.rules, {each.rules for each in verdict.members}) == (True, 0, {0})


def test_too_few_members_are_noted_and_are_no_reason_against_it() -> None:
    status = changed("coordinators", value=STATUS["coordinators"][1:2])
    verdict = judge(status, jobs(), at_s=NOW_S)
    assert verdict.safe
    assert verdict.notes == ["With 1 coordinator, changes and reads of records may pause while one restarts."]
