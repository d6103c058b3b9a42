"""Fixtures: a cluster of real processes that harmless tests share, and one of its own for the others.

Tests may run in several processes side by side; each takes its ports from a range of its own.
"""

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from metadata.model.placement import Candidate

if TYPE_CHECKING:
    from tests.cluster.harness import Cluster

PORTS_PER_WORKER = 1500
RUNNING = pytest.StashKey["Cluster"]()  # the shared cluster, unless it rests
RESTING = pytest.StashKey["Cluster"]()
# Beside what nodes leave free of any disk: they write real files, and one that is full fails a thousand tests
# for one reason.
FREE_GIB_MIN = 6

# How long an example takes says more of the machine than of the code: each test has its own timeout.
hypothesis.settings.register_profile(
    "suite", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("suite")

if worker := os.environ.get("PYTEST_XDIST_WORKER", ""):
    first = 20000 + int(worker.removeprefix("gw")) % 8 * PORTS_PER_WORKER
    os.environ["FILESTORE_PORTS"] = f"{first}-{first + PORTS_PER_WORKER - 1}"


def pytest_sessionstart() -> None:
    """Say at once what a full disk would say in every test. What is collected next holds no garbage."""
    gc.disable()
    directory = tempfile.gettempdir()
    found = shutil.disk_usage(directory)
    free_gib = found.free / 1024**3
    needed_gib = FREE_GIB_MIN + Candidate("", "", 1, found.free, found.total).reserve_bytes / 1024**3
    if free_gib < needed_gib:
        pytest.exit(f"{directory} has {free_gib:.1f} GiB free, and the tests need {needed_gib:.1f}", 1)


def pytest_collection_finish() -> None:
    """None of the tests is garbage: a look at them all would take half a second each time."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long tests out unless a mark is asked for: `make long` and the other long suites do."""
    if config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests of single parts come last: the shared cluster, which costs a tenth of a core, rests meanwhile."""
    stash = item.config.stash
    if "unit" in item.path.parts:
        if (cluster := stash.get(RUNNING, None)) is not None:
            cluster.terminate(*cluster.members)
            stash[RESTING] = cluster
            del stash[RUNNING]
    elif (cluster := stash.get(RESTING, None)) is not None and "cluster" in getattr(item, "fixturenames", ()):
        cluster.restart(*cluster.members)
        cluster.wait_healthy()
        stash[RUNNING] = cluster
        del stash[RESTING]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator["Cluster"]:
    """Three coordinators and three nodes. Nobody who uses this one may stop or damage anything."""
    from tests.cluster.harness import Cluster  # here: tests of one part do not need the whole product

    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        pytestconfig.stash[RUNNING] = started
        yield started


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator["Cluster"]:
    """The same, for one test that kills."""
    from tests.cluster.harness import Cluster

    with Cluster(tmp_path / "cluster") as started:
        yield started
