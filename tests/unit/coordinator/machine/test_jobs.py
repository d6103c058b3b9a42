"""Job runs in the state machine: one at a time of each, taken over, ended once, trimmed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.machine.jobs import RUNS_RETAINED, JobOutcome
from metadata.protocol import commands, queries
from tests.unit.state import ADMIN, State


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "state.sqlite")
    yield made
    made.store.close()


def trigger(run_id: str, job_name: str = "expire", **changes: Any) -> commands.TriggerJob:
    fields = {"caller": ADMIN, "run_id": run_id, "job_name": job_name, "node_id": "c1", **changes}
    return commands.TriggerJob(**fields)


def start(run_id: str, job_name: str = "expire") -> commands.StartRun:
    return commands.StartRun(run_id=run_id, job_name=job_name, node_id="c1")


def record(run_id: str, status: str = "completed", **changes: Any) -> commands.RecordRun:
    fields = {"run_id": run_id, "node_id": "c1", "status": status, "result": '{"done":1}', **changes}
    return commands.RecordRun(**fields)


def ids(page: dict[str, Any]) -> list[str]:
    return [run["run_id"] for run in page["runs"]]


def test_triggered_run_says_who_and_where_and_is_running(state: State) -> None:
    run = state.apply(trigger("r1", parameters='{"a":1}'))
    assert run == {
        "run_id": "r1",
        "job_name": "expire",
        "node_id": "c1",
        "invoked_by": "admin",
        "started_at_ms": state.at_ms,
        "completed_at_ms": None,
        "status": "running",
        "parameters": '{"a":1}',
        "result": "{}",
    }
    assert state.ask(queries.GetJobRun(caller=ADMIN, run_id="r1")) == run


def test_scheduled_run_is_invoked_by_the_schedule(state: State) -> None:
    assert state.apply(start("r1"))["invoked_by"] == "schedule"


@pytest.mark.parametrize("second", [trigger("r2"), start("r2")])
def test_second_run_of_a_job_is_a_conflict_that_names_the_first(
    state: State, second: commands.TriggerJob | commands.StartRun
) -> None:
    state.apply(trigger("r1"))
    refused = state.apply(second)
    assert refused == "conflict"
    assert "r1" in refused.details
    state.apply(record("r1", "failed"))
    assert state.apply(second)["status"] == "running"


def test_other_jobs_run_beside(state: State) -> None:
    state.apply(trigger("r1"))
    assert state.apply(trigger("r2", "snapshot"))["status"] == "running"
    assert [run.run_id for run in state.store.running_runs()] == ["r1", "r2"]


def test_run_id_is_used_once(state: State) -> None:
    state.apply(trigger("r1"))
    assert state.apply(trigger("r1", "snapshot")) == "conflict"


def test_progress_keeps_a_run_running_and_a_new_leader_takes_it_over(state: State) -> None:
    state.apply(trigger("r1"))
    run = state.apply(record("r1", "running", node_id="c2"))
    assert (run["status"], run["node_id"], run["completed_at_ms"]) == ("running", "c2", None)
    assert run["result"] == '{"done":1}'


def test_run_ends_once(state: State) -> None:
    state.apply(trigger("r1"))
    state.at_ms += 5
    ended = state.apply(record("r1"))
    assert (ended["status"], ended["completed_at_ms"]) == ("completed", state.at_ms)
    assert state.apply(record("r1", "failed", node_id="c2")) == "conflict"
    assert state.ask(queries.GetJobRun(caller=ADMIN, run_id="r1")) == ended
    assert state.store.running_runs() == []


def test_unknown_run_and_unknown_status_are_refused(state: State) -> None:
    assert state.apply(record("r1")) == "not_found"
    assert state.ask(queries.GetJobRun(caller=ADMIN, run_id="r1")) == "not_found"
    state.apply(trigger("r1"))
    assert state.apply(record("r1", "paused")) == "invalid_request"


def test_only_admins_trigger_and_look(state: State) -> None:
    alice = state.user("alice")
    assert state.apply(trigger("r1", caller=alice)) == "forbidden"
    state.apply(trigger("r1"))
    for query in (
        queries.GetJobRun(caller=alice, run_id="r1"),
        queries.ListJobRuns(caller=alice),
        queries.GetLastRuns(caller=alice),
    ):
        assert state.ask(query) == "forbidden"


def test_runs_are_listed_oldest_first_page_by_page_and_by_job(state: State) -> None:
    for number in range(4):
        state.apply(trigger(f"r{number}", "snapshot" if number == 1 else "expire"))
        state.apply(record(f"r{number}"))
    first = state.ask(queries.ListJobRuns(caller=ADMIN, limit=2))
    assert ids(first) == ["r0", "r1"]
    second = state.ask(queries.ListJobRuns(caller=ADMIN, limit=2, cursor=first["next_cursor"]))
    assert (ids(second), second["next_cursor"]) == (["r2", "r3"], 0)
    of_job = state.ask(queries.ListJobRuns(caller=ADMIN, job_name="expire", limit=2))
    assert ids(of_job) == ["r0", "r2"]
    rest = state.ask(queries.ListJobRuns(caller=ADMIN, job_name="expire", cursor=of_job["next_cursor"]))
    assert ids(rest) == ["r3"]


def test_last_run_of_each_job_by_name(state: State) -> None:
    assert state.ask(queries.GetLastRuns(caller=ADMIN)) == []
    for number, job_name in enumerate(["snapshot", "expire", "expire"]):
        state.apply(trigger(f"r{number}", job_name))
        state.apply(record(f"r{number}"))
    assert [run["run_id"] for run in state.ask(queries.GetLastRuns(caller=ADMIN))] == ["r2", "r0"]


def test_newest_ended_runs_of_each_job_are_kept(state: State) -> None:
    state.apply(trigger("other", "snapshot"))
    for number in range(RUNS_RETAINED + 5):
        state.apply(start(f"r{number}"))
        state.apply(record(f"r{number}"))
    state.apply(start("last"))
    runs = ids(state.ask(queries.ListJobRuns(caller=ADMIN)))
    assert runs == ["other", *(f"r{number}" for number in range(5, RUNS_RETAINED + 5)), "last"]


def cancel(run_id: str, **changes: Any) -> commands.CancelRun:
    return commands.CancelRun(**{"caller": ADMIN, "run_id": run_id, **changes})


def test_cancelled_run_has_failed_keeps_what_it_did_and_makes_room_for_the_next(state: State) -> None:
    state.apply(trigger("r1"))
    state.apply(record("r1", "running"))
    run = state.apply(cancel("r1"))
    assert (run["status"], run["result"]) == ("failed", '{"done":1,"error":"cancelled"}')
    assert run["completed_at_ms"] == state.at_ms
    assert state.apply(cancel("r1")) == run
    assert state.apply(record("r1")) == "conflict"
    assert state.apply(trigger("r2"))["status"] == "running"


def test_run_that_was_cancelled_leaves_the_job_as_it_stood(state: State) -> None:
    state.apply(trigger("r1"))
    state.apply(record("r1"))
    completed = state.store.job_outcomes()["expire"]
    assert not completed.has_failed
    state.apply(trigger("r2"))
    state.apply(cancel("r2"))
    assert state.store.job_outcomes()["expire"] == completed
    state.apply(trigger("r3"))
    state.apply(record("r3", "failed"))
    assert state.store.job_outcomes()["expire"].has_failed


def test_snapshot_that_stays_here_is_not_taken_for_one_that_was_sent(state: State) -> None:
    def run(run_id: str, result: str) -> JobOutcome:
        state.at_ms += 1000
        state.apply(trigger(run_id, "snapshot"))
        state.apply(record(run_id, result=result))
        return state.store.job_outcomes()["snapshot"]

    assert run("r1", '{"done":1}').sent_at_ms == 0
    sent = run("r2", '{"done":1,"sent_to":"directory /mnt"}')
    assert sent == JobOutcome(state.at_ms, has_failed=False, sent_at_ms=state.at_ms)
    stayed = run("r3", '{"done":1}')
    assert stayed == JobOutcome(state.at_ms, has_failed=False, sent_at_ms=sent.sent_at_ms)


def test_run_that_has_ended_by_itself_cannot_be_cancelled(state: State) -> None:
    state.apply(trigger("r1"))
    state.apply(record("r1", result="no object"))
    assert state.apply(cancel("r1")) == "conflict"
    assert state.apply(cancel("r2")) == "not_found"


def test_only_admins_cancel(state: State) -> None:
    state.apply(trigger("r1"))
    assert state.apply(cancel("r1", caller=state.user("alice"))) == "forbidden"
    assert state.store.running_runs()
