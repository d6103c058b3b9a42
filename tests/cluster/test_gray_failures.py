"""A node or a disk that hangs, in each phase of what clients do: nobody waits longer than a named bound.

A wait is that for one answer. The bounds are made of what the product names (`tests/cluster/gray.py`), and
nothing in them grows with the size of the content. The table at the end of a run tells what was measured.
"""

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from _pytest.terminal import TerminalReporter

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from metadata.model.placement import Candidate, choose
from runtime.time_limits import PATIENCE_S
from tests.cluster.gray import (
    DISK_S,
    HANGS,
    LOAD_S,
    READ_HANGS,
    READ_S,
    SYNC_HANGS,
    Failure,
    Impatient,
    send_rest,
)
from tests.cluster.harness import Cluster
from tests.cluster.upload_steps import Steps

pytestmark = pytest.mark.timeout(300)

MIB = 1 << 20
SIZES = (8 * MIB, 64 * MIB)
REPLICAS = 3
REPAIR_S = 90.0  # for all of a repair, of which nobody waits for an answer


@dataclass(frozen=True)
class Phase:
    """An upload of which so many quarters are acknowledged, and so many sent, when the failure comes."""

    name: str
    acknowledged: int
    sent: int


PHASES = (
    Phase("upload, first byte", 0, 0),
    Phase("upload, middle", 1, 2),
    Phase("upload, last byte", 3, 3),
    Phase("completion", 3, 4),
)
MEMBER = {HANGS: PATIENCE_S, SYNC_HANGS: PATIENCE_S, READ_HANGS: PATIENCE_S}
HOLDER = {HANGS: PATIENCE_S, SYNC_HANGS: DISK_S + PATIENCE_S, READ_HANGS: DISK_S + PATIENCE_S}
REMOTE = {HANGS: REPLICAS * READ_S, SYNC_HANGS: READ_S, READ_HANGS: REPLICAS * READ_S}
LOCAL = {SYNC_HANGS: READ_S, READ_HANGS: DISK_S}
QUICK = {
    ("upload, middle", HANGS.name),
    ("completion", HANGS.name),
}


class Table:
    """What was measured, of one file of tests."""

    def __init__(self) -> None:
        self._rows: list[str] = []

    def add(
        self, phase: str, who: str, failure: Failure, size: int, bound_s: float, client: Impatient
    ) -> None:
        """Asserts that the bound was kept, beside what the machine's load adds."""
        self._rows.append(
            f"{phase:<20} {who:<7} {failure.name:<12} {size // MIB:3d} MiB {bound_s:6.1f} s "
            f"{client.longest_s:8.1f} s"
        )
        assert client.longest_s <= bound_s + LOAD_S, client.words

    def lines(self) -> list[str]:
        """Head and rows."""
        head = f"{'phase':<20} {'who':<7} {'failure':<12} {'size':>7} {'bound':>8} {'longest':>10}"
        return [head, *self._rows]


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[Table]:
    """Printed at the end, and added to the file that GRAY_TABLE names."""
    made = Table()
    yield made
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    if isinstance(reporter, TerminalReporter):
        reporter.write("\n" + "\n".join(made.lines()) + "\n")
    if name := os.environ.get("GRAY_TABLE"):
        with Path(name).open("a") as file:
            file.write("\n".join(made.lines()) + "\n")


@pytest.fixture
def well(four: Cluster) -> Cluster:
    four.wait_healthy()
    return four


def cases(
    bounds: Mapping[Failure, float], phases: tuple[str, ...], *, is_long: bool = False
) -> list[ParameterSet]:
    """Every phase with every failure and size; a few of them are run by default."""
    return [
        pytest.param(
            phase,
            failure,
            size,
            id=f"{phase}, {failure.name}, {size // MIB} MiB",
            marks=()
            if (phase, failure.name) in QUICK and size == SIZES[0] and not is_long
            else pytest.mark.long,
        )
        for phase in phases
        for failure in bounds
        for size in SIZES
    ]


def placement(cluster: Cluster, steps: Steps) -> list[Member]:
    """The nodes of an upload in their order, the holder first: all are as good as the others."""
    candidates = [Candidate(node.id, "", 100, 1 << 40, 1 << 40) for node in cluster.nodes]
    named = choose(steps.file_uuid, candidates, REPLICAS)
    assert named[0] == steps.holder.id
    return [next(node for node in cluster.nodes if node.id == node_id) for node_id in named]


@contextmanager
def failing(cluster: Cluster, failures: Mapping[Member, Failure], log: Path) -> Iterator[None]:
    """While these nodes fail."""
    with ExitStack() as stack:
        for number, (node, failure) in enumerate(failures.items()):
            stack.enter_context(failure.makes(cluster, node, log.with_suffix(f".{number}")))
        yield


def upload_through(
    cluster: Cluster,
    steps: Steps,
    phase: Phase,
    failures: dict[Member, Failure],
    client: Impatient,
    log: Path,
) -> None:
    """The upload up to the phase, then the failures, then the rest of it, and its content."""
    size = len(steps.content)
    acknowledged, sent_bytes = size * phase.acknowledged // 4, size * phase.sent // 4
    asked = client.nodes[0]
    if acknowledged:
        assert steps.patch(0, acknowledged).status == 204
    with ExitStack() as stack:
        if is_begun := phase.sent > phase.acknowledged:
            sender = stack.enter_context(steps.begin(size, asked, start=acknowledged))
            sender.send(min(sent_bytes, size - 1) - acknowledged)
            steps.wait_lying(steps.holder, acknowledged + 1)
        stack.enter_context(failing(cluster, failures, log))
        if is_begun:
            send_rest(client, sender, size - min(sent_bytes, size - 1))
        client.finish(steps)
        client.download(steps.file_uuid, steps.content)


def phase_named(name: str) -> Phase:
    return next(phase for phase in PHASES if phase.name == name)


@pytest.mark.parametrize(("phase", "failure", "size"), cases(MEMBER, tuple(phase.name for phase in PHASES)))
def test_nobody_waits_for_a_member_of_an_upload(
    well: Cluster, table: Table, tmp_path: Path, phase: str, failure: Failure, size: int
) -> None:
    steps = Steps(well, os.urandom(size))
    member = placement(well, steps)[1]  # the others are behind it
    client = Impatient(well, [node for node in (steps.holder, *steps.others) if node != member])
    upload_through(well, steps, phase_named(phase), {member: failure}, client, tmp_path / "log")
    table.add(phase, "member", failure, size, MEMBER[failure], client)


@pytest.mark.parametrize(
    ("phase", "failure", "size"), cases(HOLDER, tuple(phase.name for phase in PHASES), is_long=True)
)
def test_nobody_waits_for_the_holder_of_an_upload(
    well: Cluster, table: Table, tmp_path: Path, phase: str, failure: Failure, size: int
) -> None:
    steps = Steps(well, os.urandom(size))
    nodes = steps.others if failure is HANGS else [steps.holder, *steps.others]
    client = Impatient(well, nodes)
    upload_through(well, steps, phase_named(phase), {steps.holder: failure}, client, tmp_path / "log")
    table.add(phase, "holder", failure, size, HOLDER[failure], client)


@pytest.mark.parametrize(("phase", "failure", "size"), cases(HOLDER, ("takeover",), is_long=True))
def test_nobody_waits_for_a_member_when_the_holder_is_lost(
    well: Cluster, table: Table, tmp_path: Path, phase: str, failure: Failure, size: int
) -> None:
    """The member with the bad disk may be the one that takes over: then it is the holder."""
    steps = Steps(well, os.urandom(size))
    holder, member, *_ = placement(well, steps)
    client = Impatient(well, [node for node in steps.others if node != member])
    begun = phase_named("upload, last byte")
    assert steps.patch(0, 1).status == 204
    upload_through_from(well, steps, begun, {holder: HANGS, member: failure}, client, tmp_path / "log")
    table.add(phase, "member", failure, size, HOLDER[failure], client)


def upload_through_from(
    cluster: Cluster,
    steps: Steps,
    phase: Phase,
    failures: dict[Member, Failure],
    client: Impatient,
    log: Path,
) -> None:
    """The same when its first byte is acknowledged, and everybody has what is."""
    acknowledged = len(steps.content) * phase.acknowledged // 4
    assert steps.patch(1, acknowledged).status == 204
    wait_until(
        lambda: sum(steps.lying_bytes(node) >= acknowledged for node in cluster.nodes) >= REPLICAS,
        what="what is acknowledged on every member",
        timeout_s=30,
    )
    with failing(cluster, failures, log):
        client.finish(steps)
        client.download(steps.file_uuid, steps.content)


@pytest.mark.parametrize(("phase", "failure", "size"), cases(REMOTE, ("download", "range")))
def test_nobody_waits_for_a_replica_elsewhere(
    well: Cluster, table: Table, tmp_path: Path, phase: str, failure: Failure, size: int
) -> None:
    content = os.urandom(size)
    steps = Steps(well, content)
    assert steps.patch(0, size).status == 204
    holders = placement(well, steps)
    asked = next(node for node in well.nodes if node not in holders)
    client = Impatient(well, [asked])
    part = (size // 3, size // 2) if phase == "range" else None
    with failure.makes(well, holders[0], tmp_path / "log"):
        for _ in range(6):  # each begins with another replica
            client.download(steps.file_uuid, content, part)
    table.add(phase, "remote", failure, size, REMOTE[failure], client)


@pytest.mark.parametrize(("phase", "failure", "size"), cases(LOCAL, ("download", "range"), is_long=True))
def test_nobody_waits_for_a_disk_that_hangs_under_a_download(
    well: Cluster, table: Table, tmp_path: Path, phase: str, failure: Failure, size: int
) -> None:
    content = os.urandom(size)
    steps = Steps(well, content)
    assert steps.patch(0, size).status == 204
    part = (size // 3, size // 2) if phase == "range" else None
    client = Impatient(well, [steps.holder, *steps.others])
    with failure.makes(well, steps.holder, tmp_path / "log"):
        client.download(steps.file_uuid, content, part)
    table.add(phase, "local", failure, size, LOCAL[failure], client)


@pytest.mark.long
@pytest.mark.parametrize("failure", [HANGS, SYNC_HANGS, READ_HANGS], ids=lambda failure: failure.name)
def test_repair_does_not_wait_for_a_source(
    well: Cluster, table: Table, tmp_path: Path, failure: Failure
) -> None:
    size = SIZES[0]
    steps = Steps(well, os.urandom(size))
    assert steps.patch(0, size).status == 204
    holders = placement(well, steps)
    sha256 = hashlib.sha256(steps.content).hexdigest()
    replicas = [well.replica(node, sha256) for node in holders]
    wait_until(lambda: all(path.exists() for path in replicas), what="every replica", timeout_s=30)
    replicas[1].unlink()
    client = Impatient(well, [holders[1]])
    with failure.makes(well, holders[0], tmp_path / "log"):
        client.download(steps.file_uuid, steps.content)
        began_s = time.monotonic()
        answer = client.ask("POST", "/jobs/repair", holders[1])
        assert answer is not None
        wait_until(
            lambda: sum(well.replica(node, sha256).exists() for node in well.nodes) >= REPLICAS,
            what="a new replica",
            timeout_s=REPAIR_S,
        )
        assert time.monotonic() - began_s < REPAIR_S
    table.add("repair", "source", failure, size, REMOTE[HANGS], client)


@pytest.mark.long
@pytest.mark.parametrize("failure", [HANGS, SYNC_HANGS], ids=lambda failure: failure.name)
def test_drain_is_answered_and_serves_while_a_node_hangs(
    well: Cluster, table: Table, tmp_path: Path, failure: Failure
) -> None:
    size = SIZES[0]
    steps = Steps(well, os.urandom(size))
    assert steps.patch(0, size).status == 204
    draining, hung, asked, *_ = [*placement(well, steps)]
    client = Impatient(well, [asked])
    with failure.makes(well, hung, tmp_path / "log"):
        try:
            answer = client.ask("POST", f"/cluster/nodes/{draining.id}/drain", asked)
            assert answer is not None
            assert answer.status == 200
            client.download(steps.file_uuid, steps.content)
            another = Steps(well, os.urandom(size), node=asked)
            client.finish(another)
        finally:
            undrained = client.ask("DELETE", f"/cluster/nodes/{draining.id}/drain", asked)
            assert undrained is not None
            assert undrained.status == 200
    bound_s = HOLDER[failure] if another.holder == hung else PATIENCE_S
    table.add("drain", "target", failure, size, bound_s, client)
