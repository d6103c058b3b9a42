"""The end of a run: all is mended, uploads that were left off are finished, others are given up, and
the cluster heals.

Every job is run to its end, again and again, until nothing is left to do.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from deploy.processes import wait_until
from tests.cluster.harness import Answer
from tests.healing.acts import ask, let_time_pass, take_back
from tests.healing.clients import go_on
from tests.healing.disks import all_work
from tests.healing.stage import Stage
from tests.packed_blobs import packs_of

HEALTHY_S: Final = 90.0
JOB_S: Final = 180.0
SWEPT_S: Final = 100.0  # ended uploads leave a node within a minute
REWRITTEN_S: Final = 120.0  # a node looks at its packs twice in a minute
PACK_BYTES_TO_SPARE: Final = 8 << 10  # of a pack, for its index: nobody writes it anew for that
ROUNDS_MAX: Final = 10
POLL_S: Final = 0.2
UNFINISHED: Final = ("pending", "uploading")
JOBS: Final[tuple[tuple[str, Mapping[str, Any]], ...]] = (
    ("scrub", {}),
    ("compare", {}),
    ("repair", {}),
    ("rebalance", {}),
    ("trim", {}),
    ("gc", {"grace_s": 0, "yes_really": True}),
)
# What must have come to its end; rows are faults.
UNREST: Final[Mapping[str, str]] = {
    "blobs that lack replicas": "SELECT COUNT(*) FROM blobs WHERE missing > 0",
    "replicas to be dropped": "SELECT COUNT(*) FROM blob_replicas WHERE doomed_at IS NOT NULL",
    "blobs without a file": "SELECT COUNT(*) FROM blobs WHERE reference_count = 0",
    "changes of nodes to be worked in": "SELECT COUNT(*) FROM recounts",
    "blobs with replicas to spare": (
        "SELECT COUNT(*) FROM (SELECT 1 FROM blob_replicas GROUP BY sha256"
        " HAVING COUNT(*) > (SELECT replicas FROM cluster))"
    ),
}


def settle(stage: Stage) -> int:
    """Until nothing is left to do; how many rounds that took. What does not come to rest is a fault."""
    mend(stage)
    finish_parts(stage)
    give_up_unfinished(stage)
    until_swept(stage)  # what an upload on a disk has become is spared
    for number in range(1, ROUNDS_MAX + 1):
        for node in stage.nodes:
            let_time_pass(stage, node)
        for name, parameters in JOBS:
            run_to_end(stage, name, parameters)
        stage.watch()
        unrest = find_unrest(stage)
        stage.note(f"round {number}: {unrest or 'at rest'}")
        if not unrest:
            until_rewritten(stage)
            return number
    stage.ledger.fault(f"after {ROUNDS_MAX} rounds: {unrest}")
    return ROUNDS_MAX


def wake_all(stage: Stage) -> None:
    """No node stands still."""
    for node in [node for node in stage.nodes if node.id in stage.hung]:
        stage.wake(node)


def mend(stage: Stage) -> None:
    """Room on disks, every process runs, no node drains; wait until all are healthy."""
    stage.free()
    all_work(stage)
    wake_all(stage)
    for node in [node for node in stage.nodes if node.id in stage.dead]:
        stage.cluster.restart(node)
        stage.dead.discard(node.id)
    expected = {node.id for node in stage.nodes}

    def all_healthy() -> bool:
        for node in [node for node in stage.nodes if node.id in stage.draining]:
            take_back(stage, node)
        answer = ask(stage, "GET", "/cluster/status")
        if answer is None or answer.status != 200:
            return False
        states = {node["id"]: node["state"] for node in answer.json["nodes"]}
        return not stage.draining and all(states.get(node_id) == "healthy" for node_id in expected)

    wait_until(all_healthy, what="every node healthy", timeout_s=HEALTHY_S)


def finish_parts(stage: Stage) -> None:
    """Go on with every upload that was left off, from where it stands, to its end: all is there to do so."""
    parts, stage.ledger.parts = stage.ledger.parts, []
    for file in parts:
        go_on(stage, stage.dice, file, file.content.size_bytes)
        if not file.is_stored:
            stage.ledger.fault(f"{file.file_uuid} cannot be finished from {file.acknowledged_bytes} on")


def give_up_unfinished(stage: Stage) -> None:
    """Delete every file that is not available: its upload belongs to nobody any more."""
    for status in UNFINISHED:
        while files := must(stage, "GET", f"/project-files?status={status}").json["project_files"]:
            for file in files:
                must(stage, "DELETE", f"/files/{file['file_uuid']}")


def run_to_end(stage: Stage, name: str, parameters: Mapping[str, Any]) -> None:
    """A job that was begun after now has completed; that it fails is a fault."""
    began: list[str] = []

    def begun() -> bool:
        answer = must(stage, "POST", f"/jobs/{name}", dict(parameters) or None, refusals=(409, 503))
        if answer.status == 202:
            began.append(answer.json["run_id"])
        return bool(began)

    wait_until(begun, what=f"{name} begins", timeout_s=JOB_S)
    runs: list[Any] = []

    def ended() -> bool:
        runs.append(must(stage, "GET", f"/jobs/runs/{began[0]}").json)
        return bool(runs[-1]["status"] != "running")

    wait_until(ended, what=f"{name} ends", timeout_s=JOB_S)
    stage.note(f"{name} {runs[-1]['status']}: {runs[-1]['result']}")
    if runs[-1]["status"] != "completed":
        stage.ledger.fault(f"{name} has failed: {runs[-1]['result']}")


def find_unrest(stage: Stage) -> str:
    """What is still to be done, by word of the log; "" for nothing."""
    counts = {what: stage.logged(sql)[0][0] for what, sql in UNREST.items()}
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def until_swept(stage: Stage) -> None:
    """Until no node has anything of an upload, of a fetch that nobody goes on with, or of content that came
    and that nobody has claimed.
    """

    def left() -> list[str]:
        for node in stage.nodes:
            let_time_pass(stage, node)
        return [
            f"{node.id} {path.parent.name}/{path.name}"
            for node in stage.nodes
            for area in ("uploads", "partials", "unclaimed")
            for path in sorted((stage.cluster.data(node) / area).iterdir())
        ]

    _until(lambda: not left(), lambda: stage.ledger.fault(f"not swept: {left()}"))


def until_rewritten(stage: Stage) -> None:
    """Until of no pack that takes no more most is dead: the room of deleted blobs is given back."""

    def left() -> list[str]:
        return [
            f"{node.id} {pack.name}: {pack.live_bytes} of {pack.record_bytes} bytes count"
            for node in stage.nodes
            for pack in packs_of(stage.cluster.data(node))
            if pack.is_sealed and pack.record_bytes > 2 * pack.live_bytes + PACK_BYTES_TO_SPARE
        ]

    _until(lambda: not left(), lambda: stage.ledger.fault(f"not rewritten: {left()}"), timeout_s=REWRITTEN_S)


def _until(condition: Callable[[], bool], give_up: Callable[[], None], *, timeout_s: float = SWEPT_S) -> None:
    ends_at_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > ends_at_s:
            give_up()
            return
        time.sleep(POLL_S)


def must(
    stage: Stage, method: str, path: str, body: Any = None, *, refusals: tuple[int, ...] = (503,)
) -> Answer:
    """A request at a node, repeated while nobody answers it; a refusal of a kind that is named comes back."""
    answers: list[Answer] = []

    def answered() -> bool:
        answer = ask(stage, method, path, body)
        if answer is not None and (
            answer.status < 300 or (answer.status != 503 and answer.status in refusals)
        ):
            answers.append(answer)
        return bool(answers)

    wait_until(answered, what=f"{method} {path}", timeout_s=JOB_S)
    return answers[0]
