"""Background jobs over HTTP: what there is, starting one, and what became of it."""

from collections.abc import Iterable
from typing import Any

import pytest

from deploy.processes import wait_until
from tests.api.expectations import JOB_RUN, NOBODY, check_refused, check_shape, pages, person
from tests.cluster.harness import Answer, Cluster

JOB = {"job_name": str, "description": str, "schedule_s": int}


def begun(cluster: Cluster, job_name: str) -> Answer:
    """The answer to a run that begins, after one of the schedule's if that is under way."""
    found: list[Answer] = []

    def has_begun() -> bool:
        found.append(cluster.post(f"/jobs/{job_name}"))
        return found[-1].status != 409

    wait_until(has_begun, what="the beginning of a run", timeout_s=30)
    return found[-1]


def ended(cluster: Cluster, location: str) -> Any:
    """The run, when it has ended."""
    found: list[Any] = []

    def has_ended() -> bool:
        found.append(cluster.get(location).json)
        return bool(found[-1]["status"] != "running")

    wait_until(has_ended, what="the end of a run", timeout_s=30)
    return found[-1]


def test_jobs_are_listed_with_schedule_and_last_run(cluster: Cluster) -> None:
    ended(cluster, begun(cluster, "expire").headers["location"])
    answer = cluster.get("/jobs")
    assert set(answer.json) == {"count", "jobs"}
    jobs = {job["job_name"]: job for job in answer.json["jobs"]}
    assert answer.json["count"] == len(jobs)
    assert {"expire", "snapshot"} <= set(jobs)
    assert list(jobs) == sorted(jobs)
    assert [job["job_name"] for job in pages(cluster, "/jobs", "jobs", limit=2)] == list(jobs)
    for job in jobs.values():
        last_run = job.pop("last_run", None)
        check_shape(job, JOB)
        assert job["description"]
        if last_run is not None:
            check_shape(last_run, JOB_RUN)
    assert (jobs["expire"]["schedule_s"], jobs["snapshot"]["schedule_s"]) == (60, 86_400)
    assert {"repair", "drain", "rebalance", "gc", "scrub", "compare"} <= set(jobs)


@pytest.mark.parametrize("job_name", ["expire", "snapshot"])
def test_triggered_job_runs_to_its_end(cluster: Cluster, job_name: str) -> None:
    answer = begun(cluster, job_name)
    assert answer.status == 202
    check_shape(answer.json, {"run_id": str, "job_name": str, "status": str})
    assert (answer.json["job_name"], answer.json["status"]) == (job_name, "running")
    assert answer.headers["location"] == f"/api/v1/jobs/runs/{answer.json['run_id']}"
    run = ended(cluster, answer.headers["location"])
    check_shape(run, JOB_RUN)
    assert (run["run_id"], run["job_name"], run["invoked_by"]) == (answer.json["run_id"], job_name, "admin")
    assert run["status"] == "completed", run
    assert run["node_id"] in [member.id for member in cluster.coordinators]
    assert run["completed_at"] >= run["started_at"]


def test_runs_are_listed_oldest_first_and_by_job(cluster: Cluster) -> None:
    made = []
    for job_name in ("expire", "snapshot", "expire"):
        answer = begun(cluster, job_name)
        ended(cluster, answer.headers["location"])
        made.append(answer.json["run_id"])
    answer = cluster.get("/jobs/runs")
    assert set(answer.json) == {"count", "runs"}
    runs = answer.json["runs"]
    assert [run["run_id"] for run in runs if run["run_id"] in made] == made
    everything = pages(cluster, "/jobs/runs", "runs", limit=2)
    assert ids_of(everything[: len(runs)]) == ids_of(runs)
    by_job = pages(cluster, "/jobs/runs?job_name=snapshot", "runs", limit=1)
    assert ids_of(by_job) == ids_of(run for run in everything if run["job_name"] == "snapshot")
    assert cluster.get("/jobs/runs?job_name=unknown").json == {"count": 0, "runs": []}


def ids_of(runs: Iterable[dict[str, Any]]) -> list[str]:
    """Which runs they are: those that go on by themselves change between two looks."""
    return [run["run_id"] for run in runs]


def test_run_that_has_ended_is_not_cancelled(cluster: Cluster) -> None:
    run = ended(cluster, begun(cluster, "expire").headers["location"])
    check_refused(cluster.request("DELETE", f"/jobs/runs/{run['run_id']}"), "conflict")
    assert cluster.get(f"/jobs/runs/{run['run_id']}").json == run


def test_unknown_jobs_and_runs_are_not_found(cluster: Cluster) -> None:
    for job_name in ("unknown", "runs", "Expire", "%00"):
        check_refused(cluster.post(f"/jobs/{job_name}"), "not_found")
    for run_id in (NOBODY, "x", "%00"):
        check_refused(cluster.get(f"/jobs/runs/{run_id}"), "not_found")
        check_refused(cluster.request("DELETE", f"/jobs/runs/{run_id}"), "not_found")


def test_parameters_that_a_job_does_not_take_are_refused_by_their_name(cluster: Cluster) -> None:
    check_refused(cluster.post("/jobs/expire", {"rows": 5}), "invalid_request", "rows")
    check_refused(cluster.post("/jobs/expire", []), "invalid_request")


def test_jobs_are_for_admins(cluster: Cluster) -> None:
    user = person(cluster)
    run_id = begun(cluster, "expire").json["run_id"]
    for path in ("/jobs", "/jobs/runs", f"/jobs/runs/{run_id}"):
        check_refused(cluster.get(path, token=user.token), "forbidden")
    for job_name in ("expire", "unknown"):
        check_refused(cluster.post(f"/jobs/{job_name}", token=user.token), "forbidden")
    check_refused(cluster.request("DELETE", f"/jobs/runs/{run_id}", token=user.token), "forbidden")


def test_revoked_token_is_refused_for_unknown_jobs_too(cluster: Cluster) -> None:
    user = person(cluster)
    assert cluster.post("/auth/revoke", {"user_id": user.id}).status == 200
    check_refused(cluster.post("/jobs/unknown", token=user.token), "unauthorized")


@pytest.mark.parametrize("job_name", ["drain", "scrub", "compare"])
def test_job_for_a_node_that_is_not_there_does_not_begin(cluster: Cluster, job_name: str) -> None:
    path = f"/jobs/runs?job_name={job_name}"
    before = ids_of(cluster.get(path).json["runs"])
    answer = cluster.post(f"/jobs/{job_name}", {"node_id": "nobody"})
    assert (answer.status, answer.json["details"]) == (404, "No such node: nobody.")
    assert ids_of(cluster.get(path).json["runs"]) == before
