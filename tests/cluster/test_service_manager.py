"""What systemd hears from real processes, and what a reload makes them do."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.processes import wait_until
from tests.cluster.harness import FILESTORE
from tests.cluster.services import WAIT_S, Place, Service, service


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def coordinator(place: Place, tmp_path: Path) -> Iterator[Service]:
    place.make_coordinator()
    config = tmp_path / "coordinator.toml"
    config.write_text(f'data = "{place.coordinator}"\nlog-level = "error"\n')
    with service(tmp_path, "c1", "coordinator", "run", "--config", str(config)) as started:
        started.until("READY=1")
        yield started


def test_coordinator_tells_when_it_serves_reloads_and_stops(coordinator: Service, tmp_path: Path) -> None:
    coordinator.until_status("Leads")
    coordinator.until("WATCHDOG=1", times=3)
    assert not coordinator.says('"level": "info"')
    (tmp_path / "coordinator.toml").write_text(f'data = "{tmp_path / "c1"}"\nlog-level = "info"\n')
    coordinator.reload(times=1)
    assert coordinator.heard.count("RELOADING=1") == 1
    coordinator.process.terminate()
    coordinator.until("STOPPING=1")
    assert coordinator.process.wait(WAIT_S) == 0
    assert coordinator.says('"message": "stopping"')


def test_coordinator_uses_its_certificate_anew_when_it_reloads(coordinator: Service, tmp_path: Path) -> None:
    config = tmp_path / "coordinator.toml"
    config.write_text('log-level = "loud"\n')
    (tmp_path / "c1" / "credential.pem").rename(tmp_path / "elsewhere.pem")
    coordinator.reload(times=1)
    assert coordinator.says("cannot use the certificate on disk")
    assert coordinator.says("log-level: must be one of debug, info, warning, error.")
    (tmp_path / "elsewhere.pem").rename(tmp_path / "c1" / "credential.pem")
    config.write_text('log-level = "info"\n')
    coordinator.reload(times=2)
    coordinator.reload(times=3)
    assert coordinator.says("using the certificate on disk")


@pytest.mark.usefixtures("coordinator")
@pytest.mark.long
def test_node_and_its_workers_tell_the_same_and_log_by_the_level_of_the_file(
    place: Place, tmp_path: Path
) -> None:
    place.make_node()
    data = place.node
    config = tmp_path / "node.toml"
    config.write_text(f'data = "{data}"\nworkers = 2\nlog-level = "error"\n')
    with service(tmp_path, "n1", "node", "run", "--config", str(config)) as node:
        node.until("READY=1")
        node.until_status("Serves")
        node.until("WATCHDOG=1", times=3)
        assert not node.says('"level": "info"')
        config.write_text(f'data = "{data}"\nworkers = 2\nlog-level = "info"\n')
        node.reload(times=1)
        node.reload(times=2)
        using = '"component": "node-worker-1", "logger": "metadata.rpc.tls_contexts"'
        wait_until(lambda: node.says(using), what="word of the worker", timeout_s=WAIT_S)
        node.process.terminate()
        node.until("STOPPING=1")
        assert node.process.wait(WAIT_S) == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "worker = 2",
            "unknown option 'worker'; the options are cors-origin, data, http, log-level, public-url, ",
        ),
        ("workers = [2]", "workers: must be a text or a number."),
        ("workers = 65", "65 is not in the range 1<=x<=64"),
        ("workers 2", "is not valid TOML"),
        ('log-level = "loud"', "'loud' is not one of 'debug', 'info', 'warning', 'error'"),
    ],
    ids=["unknown", "list", "range", "syntax", "level"],
)
def test_file_with_a_mistake_is_refused_by_name(tmp_path: Path, text: str, told: str) -> None:
    config = tmp_path / "node.toml"
    config.write_text(f'data = "{tmp_path}"\n{text}\n')
    done = subprocess.run(
        [FILESTORE, "node", "run", "--config", str(config)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2  # RestartPreventExitStatus= of the units
    assert told in done.stderr
