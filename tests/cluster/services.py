"""A cluster of one coordinator and one node, whose processes are started as systemd starts them."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ca.errors import Unavailable
from deploy.processes import Child, free_ports, wait_until
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


class Place:
    """Where both lie, and the ports that they have; the plain ones are for `--http`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.coordinator, self.node = directory / "c1", directory / "n1"
        self._peer, self._api, self._node_api, self._node_peer, self.plain, self.node_plain = free_ports(6)
        self.url, self.node_url = (f"https://127.0.0.1:{port}" for port in (self._api, self._node_api))
        self.access = {
            "FILESTORE_CA": str(self.coordinator / "ca.pem"),
            "FILESTORE_TOKEN_FILE": str(self.coordinator / "admin.token"),
        }

    def make_coordinator(self) -> None:
        """Its directory."""
        init = ("coordinator", "init", "--id", "c1", "--development", "--replicas", "1")
        place = f"127.0.0.1:{self._peer}:{self._api}"
        run(*init, "--address", place, "--data", str(self.coordinator))

    def make_node(self, *, name: str = "n1", address: str = "127.0.0.1") -> Path:
        """Its directory, by the coordinator, which runs."""
        token, data = self.directory / f"join-{name}", self.directory / name
        run("token", "join", "--node-id", name, "--url", self.url, "-o", str(token), **self.access)
        ports = ("--api-port", str(self._node_api), "--peer-port", str(self._node_peer))
        join = ("node", "join", "--id", name, "--data", str(data), "--token-file", str(token))
        run(*join, "--coordinator", self.url, "--address", address, *ports)
        return data
