"""What systemd hears from real processes, and what a reload makes them do."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ca.errors import Unavailable
from deploy.dev.processes import Child, free_ports, wait_until
from tests.cluster.harness import FILESTORE
from tests.notify_socket import NotifySocket

WATCHDOG_S = 2
WAIT_S = 30


class Service:
    """A process of ours, started as systemd starts one."""

    def __init__(self, process: subprocess.Popen[bytes], heard: NotifySocket, log: Path) -> None:
        self.process = process
        self.heard = heard
        self._log = log

    def until(self, line: str, *, times: int = 1) -> None:
        """Wait until the manager has heard it so often."""
        self._wait(lambda: self.heard.count(line) >= times, line)

    def until_status(self, text: str) -> None:
        """Wait until that is the newest status."""
        self._wait(lambda: self.heard.statuses()[-1:] == [text], text)

    def reload(self, *, times: int) -> None:
        """Wait until it has read everything again; `times`: how often since its start."""
        self.process.send_signal(signal.SIGHUP)
        self.until("READY=1", times=times + 1)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        child = Child("the service", self.process, self._log)
        try:
            wait_until(condition, what=what, timeout_s=WAIT_S, watched=[child])
        except Unavailable:
            if not condition():  # what it told last is there when it has ended
                raise

    def says(self, text: str) -> bool:
        """Whether that is in its log."""
        return text in self._log.read_text()


@contextmanager
def service(directory: Path, name: str, *arguments: str) -> Iterator[Service]:
    log = directory / f"{name}.log"
    environment = os.environ | {"WATCHDOG_USEC": str(WATCHDOG_S * 1_000_000)}
    environment.pop("WATCHDOG_PID", None)
    with NotifySocket(directory / f"{name}.notify") as heard, log.open("wb") as output:
        environment["NOTIFY_SOCKET"] = str(heard.path)
        process = subprocess.Popen([FILESTORE, *arguments], stdout=output, stderr=output, env=environment)
        try:
            yield Service(process, heard, log)
        finally:
            process.kill()
            process.wait()


def run(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [FILESTORE, *arguments], capture_output=True, text=True, check=True, env=os.environ | environment
    )
    return done.stdout


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Service]:
    peer, api = free_ports(2)
    data = tmp_path / "c1"
    place = f"127.0.0.1:{peer}:{api}"
    init = ("coordinator", "init", "--id", "c1", "--data", str(data), "--development", "--replicas", "1")
    run(*init, "--address", place)
    config = tmp_path / "coordinator.toml"
    config.write_text(f'data = "{data}"\nlog-level = "error"\n')
    with service(tmp_path, "c1", "coordinator", "run", "--config", str(config)) as started:
        started.until("READY=1")
        (tmp_path / "url").write_text(f"https://127.0.0.1:{api}")
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
    assert coordinator.says("the certificate on disk cannot be used")
    assert coordinator.says("log-level: must be one of debug, info, warning, error.")
    (tmp_path / "elsewhere.pem").rename(tmp_path / "c1" / "credential.pem")
    config.write_text('log-level = "info"\n')
    coordinator.reload(times=2)
    coordinator.reload(times=3)
    assert coordinator.says("using the certificate on disk")


def test_node_and_its_workers_tell_the_same_and_log_by_the_level_of_the_file(
    coordinator: Service, tmp_path: Path
) -> None:
    url, token, data = (tmp_path / "url").read_text(), tmp_path / "join", tmp_path / "n1"
    admin = {
        "FILESTORE_CA": str(tmp_path / "c1" / "ca.pem"),
        "FILESTORE_TOKEN_FILE": str(tmp_path / "c1" / "admin.token"),
    }
    run("token", "join", "--node-id", "n1", "--url", url, "-o", str(token), **admin)
    api, peer = free_ports(2)
    ports = ("--address", "127.0.0.1", "--api-port", str(api), "--peer-port", str(peer))
    run(
        "node",
        "join",
        "--id",
        "n1",
        "--data",
        str(data),
        "--token-file",
        str(token),
        "--coordinator",
        url,
        *ports,
    )
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
        using = '"component": "node-worker-1", "logger": "coordinator.rpc.tls_contexts"'
        wait_until(lambda: node.says(using), what="word of the worker", timeout_s=WAIT_S)
        node.process.terminate()
        node.until("STOPPING=1")
        assert node.process.wait(WAIT_S) == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("worker = 2", "'worker' is not among cors-origin, data, http, log-level, public-url, "),
        ("workers = [2]", "workers: must be a text or a number."),
        ("workers = 65", "65 is not in the range 1<=x<=64"),
        ("workers 2", "is no TOML"),
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
