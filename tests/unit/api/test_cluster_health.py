"""How well a cluster is, from what its coordinators say."""

from typing import Any

import msgspec
import pytest

from api.bodies.coordinators import CoordinatorState, EndingCertificate, NodeState
from api.cluster_health import findings_of, members_are_well, since_of
from deploy.commands.status import progress_of
from metadata.model.jobs import DRAIN, EXPIRE, GC, REPAIR, SCRUB, Amounts, JobKind, amounts_of
from metadata.model.records import CoordinatorRecord
from metadata.model.replica_records import ReplicaCounts
from metadata.protocol.calls import CoordinatorStatus, HeartbeatCall, NodeStatus, StatusReply
from metadata.rpc.node_health import NodeHealth
from tests.documents import RUNBOOK
from tests.unit.node_records import node_record


def reply(write_quorum: int = 2) -> StatusReply:
    own = CoordinatorStatus(id="c1", role="leader", term=1, leader="c1", commit=1, applied=1, last_index=1)
    return StatusReply(
        cluster="lab",
        coordinator=own,
        coordinators=[CoordinatorRecord(coordinator_id="c1", address="10.0.0.1", peer_port=1, api_port=2)],
        nodes=[],
        files=0,
        blobs=0,
        blob_bytes=0,
        write_quorum=write_quorum,
    )


def coordinator(coordinator_id: str = "c1", **changed: Any) -> CoordinatorState:
    return CoordinatorState(**{"id": coordinator_id, "role": "leader", "membership": "voter"} | changed)


def node(node_id: str, **changed: Any) -> NodeState:
    fields: dict[str, Any] = {
        "id": node_id,
        "url": "https://127.0.0.1:1",
        "state": "healthy",
        "heard_ms_ago": 1,
        "free_bytes": 1,
        "total_bytes": 2,
        "uploads": 0,
        "zone": "",
        "weight": 100,
    }
    return NodeState(**fields | changed)


NODES = [node("n1"), node("n2"), node("n3")]


def health_of(*told: Any, **more: Any) -> tuple[str, list[str]]:
    """The word and the sentences alone; each names a section that the runbook has."""
    health, findings = findings_of(*told, **more)
    sections = {line.removeprefix("## ") for line in RUNBOOK.splitlines()}
    assert {finding.runbook for finding in findings} <= sections
    return health, [finding.problem for finding in findings]


def test_cluster_that_lacks_nothing_is_healthy() -> None:
    assert health_of(reply(), "c1", [coordinator()], NODES, []) == ("healthy", [])


@pytest.mark.parametrize(
    ("jump_ms", "told"),
    [
        (3 * 86_400_000, "72 h ahead. Expiry waits until both the old and the new time are reached, until"),
        (-3 * 86_400_000, "72 h back. The cluster continues with its own time, until"),
    ],
)
def test_jump_of_all_clocks_is_told_once(jump_ms: int, told: str) -> None:
    jumped = msgspec.structs.replace(reply().coordinator, clock_jump_ms=jump_ms)
    best = msgspec.structs.replace(reply(), coordinator=jumped)
    health, (problem,) = health_of(best, "c1", [coordinator()], NODES, [])
    assert health == "degraded"
    assert problem.startswith(f"Most clocks have jumped {told}")


def test_drain_that_has_nowhere_to_put_replicas_says_what_is_lacking() -> None:
    nodes = [*NODES[:2], *(node(each, state="draining", replicas=2) for each in ("n3", "n4"))]
    best = msgspec.structs.replace(reply(), replicas_wanted=3)
    health, (first, second) = health_of(best, "c1", [coordinator()], nodes, [])
    assert health == "degraded"
    assert first == (
        "The node n3 cannot be drained: each blob needs 3 replicas on other nodes, and 2 nodes are healthy "
        "and not draining. Start or add 1 node, or end the drain: `filestore node undrain n3`."
    )
    assert second.startswith("The node n4 cannot be drained: ")
    for enough in ([*nodes, node("n5")], [*NODES[:2], node("n3", state="draining", replicas=0)]):
        assert health_of(best, "c1", [coordinator()], enough, []) == ("healthy", [])


def test_node_that_is_too_old_is_named_before_what_comes_of_it() -> None:
    nodes = [*NODES, node("n4", state="suspect", is_too_old=True)]
    health, (first, *others) = health_of(reply(), "c1", [coordinator()], nodes, [])
    assert health == "degraded"
    assert first.startswith("The node n4 is rejected, because its version is older than the cluster requires")
    assert any(line.startswith("The node n4 is suspect") for line in others)


def test_member_that_refuses_requests_calls_nothing_healthy() -> None:
    found = health_of(reply(), "c1", [coordinator()], NODES, [], is_served=False)
    assert found == (
        "degraded",
        ["The member that was asked has lost contact with the coordinators and rejects requests."],
    )


def test_node_that_fails_at_copies_is_named_with_a_sentence() -> None:
    why = "failed 3 times in a row to create its assigned replicas (answered 500 internal)"
    nodes = [*NODES[:2], node("n3", copy_failures=why)]
    assert health_of(reply(), "c1", [coordinator()], nodes, []) == (
        "degraded",
        [f"The node n3 {why}. See its log."],
    )
    assert not members_are_well("c1", [coordinator()], nodes)


@pytest.mark.parametrize(
    ("wanted", "hope"),
    [
        (3, "repair creates them on nodes that have room"),
        (4, "3 nodes take replicas, 4 are required: start or add one"),
    ],
)
def test_blobs_that_lack_replicas_degrade_a_cluster(wanted: int, hope: str) -> None:
    counts = ReplicaCounts(
        short={1: 2, 2: 1, 3: 4}, lost=1, unreferenced=5, doomed={"n1": 3}, recounting=[], absent=4
    )
    told = msgspec.structs.replace(reply(), replicas=counts, replicas_wanted=wanted)
    found = health_of(told, "c1", [coordinator()], NODES, [])
    assert found == (
        "degraded",
        [
            "1 blob is lost: no live node holds a replica.",
            "4 blobs are only on nodes that are down or have not compared their disks since: bring one back.",
            f"3 blobs are short of replicas: {hope}.",
        ],
    )


@pytest.mark.parametrize(
    ("coordinators", "nodes", "words"),
    [
        ([coordinator(role="unreachable")], NODES, "c1 does not answer at 10.0.0.1:1."),
        ([coordinator(), coordinator("c2", disk_full=True)], NODES, "disk of the coordinator c2 is full"),
        ([coordinator(), coordinator("c2", recovering=True)], NODES, "c2 has lost the end of its log"),
        ([coordinator(diverged=True)], NODES, "Rebuild"),
        ([coordinator(), coordinator("c2", role="follower", active=False)], NODES, "c2 answers, but not to"),
        ([coordinator()], [*NODES[:2], node("n3", state="suspect")], "n3 is suspect"),
        ([coordinator()], [*NODES[:2], node("n3", disk="failed")], "disk of the node n3 cannot be written"),
    ],
)
def test_member_that_is_not_well_degrades_it(
    coordinators: list[CoordinatorState], nodes: list[NodeState], words: str
) -> None:
    health, problems = health_of(reply(), "c1", coordinators, nodes, [])
    assert (health, len(problems)) == ("degraded", 1)
    assert words in problems[0]
    assert not members_are_well("c1", coordinators, nodes)


def test_leader_whose_disk_is_full_makes_it_unavailable() -> None:
    health, problems = health_of(reply(), "c1", [coordinator(disk_full=True)], NODES, [])
    assert health == "unavailable"
    assert problems == ["The disk of the leading coordinator c1 is full: changes are rejected."]
    assert not members_are_well("c1", [coordinator(disk_full=True)], NODES)


def test_deleted_small_files_that_wait_for_room_are_told_with_how_much_they_need() -> None:
    waiting = node("n3", blocked_dead_bytes=(100 << 20) - 1, blocked_wanted_bytes=(40 << 20) + 1)
    nodes = [*NODES[:2], waiting]
    expected = (
        "The node n3 cannot free 100 MiB of deleted small files until its disk has 41 MiB more free space."
        " Delete larger files, or add a node."
    )
    assert health_of(reply(), "c1", [coordinator()], nodes, []) == ("degraded", [expected])
    assert members_are_well("c1", [coordinator()], nodes)


def test_disks_without_room_degrade_it_and_too_many_of_them_make_it_unavailable() -> None:
    one = [*NODES[:2], node("n3", disk="low")]
    expected = ("degraded", ["The disk of the node n3 is almost full."])
    assert health_of(reply(), "c1", [coordinator()], one, []) == expected
    assert members_are_well("c1", [coordinator()], one)
    two = [NODES[0], node("n2", disk="failed"), node("n3", disk="low")]
    assert health_of(reply(), "c1", [coordinator()], two, [])[0] == "unavailable"


def test_clock_and_certificate_degrade_it_though_the_members_are_well() -> None:
    nodes = [*NODES[:2], node("n3", clock_offset_ms=-5001)]
    ending = [EndingCertificate(holder="root", expires_at="2026-12-01T00:00:00.000Z")]
    health, problems = health_of(reply(), "c1", [coordinator()], nodes, ending)
    assert (health, len(problems)) == ("degraded", 2)
    assert problems[0] == "The clock of the node n3 is 5 s behind most other clocks."
    assert members_are_well("c1", [coordinator()], nodes)
    nodes = [*NODES[:2], node("n3", clock_offset_ms=599_974)]
    _, (problem,) = health_of(reply(), "c1", [coordinator()], nodes, [])
    assert problem == "The clock of the node n3 is 10 min ahead of most other clocks."


def test_node_that_the_leader_has_not_heard_is_told_with_what_to_do() -> None:
    """It may never have run; or it runs, and does not know the coordinators that a restore made."""
    _, problems = health_of(reply(), "c1", [coordinator()], [*NODES, node("n9", state="joined")], [])
    (told,) = problems
    assert told.startswith("The node n9 has never run, as far as the current leader knows: start it.")
    assert "`filestore node reconnect`" in told
    unheard = node("n3", state="unheard", recorded="returning")
    _, (told,) = health_of(reply(), "c1", [coordinator()], [*NODES[:2], unheard], [])
    assert told.startswith(
        "The node n3 has sent no heartbeat to the current leader yet, and was last recorded as returning:"
        " start it."
    )
    assert "`filestore node reconnect`" in told


def test_node_that_is_refused_since_the_coordinators_began_is_told_with_the_reason_alone() -> None:
    """It was reconnected already: to advise that once more would not help."""
    rival = "the cluster does not know its certificate; revoke the node"
    unheard = node("n3", state="unheard", recorded="healthy", rival=rival)
    _, problems = health_of(reply(), "c1", [coordinator()], [*NODES[:2], unheard], [])
    assert problems == [f"The node n3 is rejected: {rival}."]
    _, problems = health_of(reply(), "c1", [coordinator()], [*NODES[:2], node("n3", rival=rival)], [])
    assert problems == [f"A second process that claims to be the node n3 is rejected: {rival}."]


def test_what_waits_to_leave_a_draining_node_is_not_short_of_replicas() -> None:
    counts = ReplicaCounts(short={1: 229}, lost=0, unreferenced=0, doomed={}, recounting=[], few=0)
    nodes = [*NODES, node("n4", state="draining")]
    told = msgspec.structs.replace(reply(), replicas=counts, replicas_wanted=3)
    assert health_of(told, "c1", [coordinator()], nodes, []) == ("healthy", [])
    few = msgspec.structs.replace(counts, short={1: 2500}, few=7)
    told = msgspec.structs.replace(told, replicas=few)
    _, problems = health_of(told, "c1", [coordinator()], nodes, [])
    assert problems == [
        "At least 7 blobs are short of replicas: repair creates them on nodes that have room."
    ]


def test_full_disk_is_told_as_full() -> None:
    nodes = [*NODES[:2], node("n3", disk="full", free_bytes=0)]
    assert health_of(reply(), "c1", [coordinator()], nodes, []) == (
        "degraded",
        ["The disk of the node n3 is full: nothing can be written there."],
    )


def test_finding_tells_since_when_and_what_to_do() -> None:
    """By what most clocks show: that of the coordinator which leads is ten seconds behind."""
    health, at_ms = NodeHealth(), 1_800_000_000_000
    beats = [HeartbeatCall(1, 9, 0, takes_bytes=False, at_ms=1), HeartbeatCall(1, 9, 0, at_ms=1)]
    for number, beat in enumerate([beats[1], beats[0], beats[0]]):
        health.receive("n3", beat, at_s=float(number), at_ms=at_ms + 1000 * number)
    seen = NodeStatus(
        node=node_record("n3"),
        state="suspect",
        heard_ms_ago=20_000,
        free_bytes=0,
        total_bytes=9,
        uploads=0,
        since_ms=health.since_ms("n3"),
    )
    best = msgspec.structs.replace(reply(), at_ms=at_ms + 22_000, correction_ms=10_000)
    nodes = [*NODES[:2], node("n3", state="suspect", disk="failed")]
    since = {"n3": since_of(seen, best)}
    _, findings = findings_of(best, "c1", [coordinator()], nodes, [], since=since)
    assert [(each.runbook, each.since) for each in findings] == [
        ("FilestoreNodeDown", "2027-01-15T08:00:12.000Z"),
        ("FilestoreDiskNotWritable", "2027-01-15T08:00:11.000Z"),
    ]
    health.receive("n3", beats[1], at_s=9.0, at_ms=at_ms)
    assert health.since_ms("n3") == {}


def test_certificate_that_has_ended_is_told_as_such() -> None:
    at = "2026-12-01T00:00:00.000Z"
    for now, word in (("2026-11-30T23:59:59.999Z", "expires"), (at, "expired")):
        ending = [EndingCertificate(holder=holder, expires_at=at) for holder in ("intermediate", "node n3")]
        _, problems = health_of(reply(), "c1", [coordinator()], NODES, ending, now=now)
        assert problems == [
            f"The intermediate certificate {word} at {at}.",
            f"The certificate of node n3 {word} at {at}.",
        ]


def test_certificate_for_browsers_is_told_with_its_section_of_the_runbook() -> None:
    ending = [EndingCertificate(holder="node n3 for browsers", expires_at="2026-12-01T00:00:00.000Z")]
    _, (found,) = findings_of(reply(), "c1", [coordinator()], NODES, ending)
    assert found.problem == "The certificate of node n3 for browsers expires at 2026-12-01T00:00:00.000Z."
    assert found.runbook == "FilestoreWebCertificateExpires"


def test_difference_of_states_is_told_while_it_is_open() -> None:
    differing = reply()
    differing = msgspec.structs.replace(
        differing, coordinator=msgspec.structs.replace(differing.coordinator, differ=True)
    )
    health, (problem,) = health_of(differing, "c1", [coordinator()], NODES, [])
    assert (health, problem[:35]) == ("degraded", "The states of coordinators differ, ")


def test_clock_within_its_bound_is_no_problem() -> None:
    nodes = [*NODES[:2], node("n3", clock_offset_ms=5000)]
    assert health_of(reply(), "c1", [coordinator()], nodes, [])[0] == "healthy"


def test_no_leader_is_unavailable() -> None:
    assert health_of(reply(), "", [coordinator()], NODES, [])[0] == "unavailable"


def test_fewer_nodes_than_the_write_quorum_is_unavailable() -> None:
    nodes = [NODES[0], node("n2", state="draining"), node("n3", state="draining")]
    health, problems = health_of(reply(), "c1", [coordinator()], nodes, [])
    assert health == "unavailable"
    assert problems == ["1 node takes new files, 2 are required: uploads are rejected."]


def test_draining_node_alone_is_healthy() -> None:
    nodes = [*NODES[:2], node("n3", state="draining")]
    assert health_of(reply(), "c1", [coordinator()], nodes, [])[0] == "healthy"


def test_rest_of_a_run_is_told_at_its_pace() -> None:
    run = {"started_at": "1970-01-01T00:00:00.000Z", "result": {"done": 10, "left": 30, "error": "x"}}
    assert progress_of(run, 100.0) == ("done 10, left 30", "5 min")


@pytest.mark.parametrize(
    ("kind", "result", "amounts"),
    [
        (REPAIR, {}, Amounts(0, 0, None, 0)),
        (REPAIR, {"looked_at": 9, "copied": 3, "bytes": 30, "failed": 1, "left": 5}, Amounts(9, 3, 5, 30)),
        (DRAIN, {"looked_at": 9, "copied": 4, "released": 3, "left": 0, "error": "x"}, Amounts(9, 3, 0, 0)),
        (SCRUB, {"looked": 9, "bytes": 7, "damaged": 1, "left": 2}, Amounts(9, 9, 2, 7)),
        (GC, {"blobs": 2, "blob_bytes": 20, "replicas": 6, "dropped": 5, "left": 1}, Amounts(2, 5, 1, 20)),
        (EXPIRE, {"done": 4, "uploads": 4}, Amounts(4, 4, None, 0)),
    ],
)
def test_result_of_every_job_tells_how_far_it_is(
    kind: JobKind, result: dict[str, object], amounts: Amounts
) -> None:
    assert amounts_of(kind.name, result) == amounts_of("of a newer version", result) == amounts


@pytest.mark.parametrize("result", [{}, {"done": 10}, {"done": 0, "left": 5}, None])
def test_run_that_does_not_tell_its_rest_has_no_time_left(result: object) -> None:
    assert progress_of({"started_at": "1970-01-01T00:00:00.000Z", "result": result}, 100.0)[1] == ""


@pytest.mark.parametrize(
    ("free_bytes", "trash_files", "said"),
    [
        (99, 3, "will soon be deleted for good"),
        (74, 3, "are deleted for good now"),
        (74, 0, ""),
        (100, 3, ""),
    ],
)
def test_trash_that_must_shrink_is_told_before(free_bytes: int, trash_files: int, said: str) -> None:
    """The reserve of each disk is 50: less than that, or than half of it, is free beyond it."""
    best = msgspec.structs.replace(reply(), trash_files=trash_files, trash_bytes=1 << 21)
    nodes = [node(name, free_bytes=free_bytes, total_bytes=1000) for name in ("n1", "n2", "n3")]
    _, problems = health_of(best, "c1", [coordinator()], nodes, [])
    told = [problem for problem in problems if "trash" in problem]
    assert len(told) == bool(said)
    assert all(said in problem and "3 files (2 MiB)" in problem for problem in told)
