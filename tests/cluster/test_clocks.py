"""Members whose wall clock is wrong for a while, and right again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.storage.config import CoordinatorFiles
from deploy.processes import wait_until
from tests.cluster.clocks import library, set_clock
from tests.cluster.harness import Cluster

HOUR_S = 3600
DEADLINE_S = 60.0

pytestmark = pytest.mark.long  # run by `make long`


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("clocks"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, shim: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def start_coordinators(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, shim: Path, *, shift_s: int
) -> None:
    """All of them anew, with their clocks moved."""
    cluster.terminate(*cluster.coordinators)
    set_clock(monkeypatch, shim, shift_s)
    cluster.restart(*cluster.coordinators)


def test_nothing_ends_by_the_clock_of_a_leader_that_is_ahead_of_the_nodes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, shim: Path
) -> None:
    begun = cluster.create(size_bytes=100)["file_uuid"]  # for a day
    start_coordinators(cluster, monkeypatch, shim, shift_s=50 * HOUR_S)
    told = b"The clock of this coordinator is"
    wait_until(
        lambda: told in cluster.filestore("job", "run", "expire", "--wait").stdout,
        what="a doubt",
        timeout_s=DEADLINE_S,
    )
    start_coordinators(cluster, monkeypatch, shim, shift_s=0)
    cluster.wait_healthy()
    assert cluster.get(f"/api/v1/project-files/{begun}").json["status"] == "pending"


def test_certificate_that_was_made_by_a_clock_ahead_is_made_anew(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, shim: Path
) -> None:
    paths = [CoordinatorFiles(cluster.data(member)).credential_path for member in cluster.coordinators]
    before = [path.read_bytes() for path in paths]
    start_coordinators(cluster, monkeypatch, shim, shift_s=30 * 24 * HOUR_S)
    wait_until(
        lambda: all(path.read_bytes() != old for path, old in zip(paths, before, strict=True)),
        what="certificates from the future",
        timeout_s=DEADLINE_S,
    )
    start_coordinators(cluster, monkeypatch, shim, shift_s=0)
    cluster.wait_healthy()
    assert cluster.get(f"/api/v1/files/{cluster.store(b'new')}").body == b"new"


@pytest.mark.parametrize(("days", "told"), [(30, "has expired (is the"), (-30, "is not valid yet (is the")])
def test_member_whose_clock_makes_all_others_strangers_doubts_its_own(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, shim: Path, days: int, told: str
) -> None:
    node = cluster.nodes[0]
    cluster.terminate(node)
    set_clock(monkeypatch, shim, days * 24 * HOUR_S)
    cluster.restart(node)
    wait_until(
        lambda: f"the certificate {told} clock here" in cluster.logs()[node.id],
        what="a doubt",
        timeout_s=DEADLINE_S,
    )
    cluster.terminate(node)
    set_clock(monkeypatch, shim, 0)
    cluster.restart(node)
    cluster.wait_healthy()
