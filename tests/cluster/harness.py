"""A real cluster for a test: started like `filestore dev`, killed and restarted by name, ended by pid.

Also what tests ask it with: a small HTTP client on the standard library (no code of ours between test and
server), curl, and the installed command.
"""

import hashlib
import http.client
import json
import os
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

from ca.tls import client_context
from deploy.dev_cluster import DevelopmentCluster, Member
from deploy.processes import Child, free_ports, is_ready, last_line, stop_children, wait_until
from tests.blobs_on_disk import file_of, is_on
from tests.cluster.forks import Forked, can_fork

FILESTORE = str(Path(sys.executable).with_name("filestore"))
REQUEST_TIMEOUT_S = 30.0
JOIN_TOKEN_S_MIN = 60
API = "/api/v1"
STRANGERS = (f"127.{second}.{third}.7" for second in range(1, 255) for third in range(255))


def require_curl() -> None:
    """Skip the test where the machine has no curl."""
    if shutil.which("curl") is None:
        pytest.skip("no curl command here")


@dataclass(frozen=True)
class Answer:
    """What came back. Header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, which must be JSON."""
        return json.loads(self.body)


class _Forks(DevelopmentCluster):
    """Its processes are forks where that makes no difference, and it ends in less time."""

    def start_member(self, member: Member) -> None:
        if member.id in self.programs or not can_fork(os.environ):
            super().start_member(member)
            return
        log = self.directory / "logs" / f"{member.id}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        arguments = [member.role, "run", "--data", str(self.data(member)), *self._options[member.role]]
        none = subprocess.DEVNULL
        with log.open("ab") as out:
            process = Forked(
                [FILESTORE, *arguments], env=os.environ, stdin=none, stdout=out, stderr=out, process_group=0
            )
        self.children[member.id] = Child(member.id, process, log)

    def stop(self) -> None:
        """Coordinators end at once: a leader would seek a successor for two seconds among those that end."""
        nodes = {member.id for member in self.layout.of_role("node")}
        stop_children([child for name, child in self.children.items() if name in nodes])
        for child in self.children.values():
            if child.runs:
                child.process.kill()
        super().stop()


class _KeptConnections:
    """Connections that wait for the next request to the same server: half of a request is its handshake."""

    def __init__(self) -> None:
        self._idle: list[http.client.HTTPSConnection] = []
        self._lock = threading.Lock()

    def take(self, host: str, port: int) -> http.client.HTTPSConnection | None:
        """One on which nothing has come since: neither bytes nor its end."""
        while True:
            with self._lock:
                known = (each for each in self._idle if (each.host, each.port) == (host, port))
                if (found := next(known, None)) is None:
                    return None
                self._idle.remove(found)
            poll = select.poll()
            poll.register(found.sock, select.POLLIN)
            if not poll.poll(0):
                return found
            found.close()

    def give(self, connection: http.client.HTTPSConnection) -> None:
        with self._lock:
            self._idle.append(connection)

    def close(self) -> None:
        with self._lock:
            for connection in self._idle:
                connection.close()
            self._idle.clear()


class Cluster:
    """Use as a context manager."""

    def __init__(
        self,
        directory: Path,
        *,
        node_count: int = 3,
        replicas: int = 3,
        write_quorum: int = 2,
        node_options: Sequence[str] = (),
        coordinator_options: Sequence[str] = (),
    ) -> None:
        self._development = _Forks(
            directory,
            node_count=node_count,
            replicas=replicas,
            write_quorum=write_quorum,
            node_options=node_options,
            coordinator_options=coordinator_options,
        )
        self.directory = directory
        self.secrets: set[str] = set()
        self._kept = _KeptConnections()

    def __enter__(self) -> Self:
        try:
            self._development.start()
        except BaseException:
            self._development.stop()
            raise
        self.context = client_context(self.ca.read_text())
        # Minted at once, so that a test that needs it expired has the least to wait for.
        ends_at_s = time.monotonic() + JOIN_TOKEN_S_MIN + 1
        self.short_lived_join_token = (self.join_token(ttl_seconds=JOIN_TOKEN_S_MIN), ends_at_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kept.close()
        self._development.stop()
        assert not self.leaked_secrets()
        if kind is None:
            self._remove_data()

    def _remove_data(self) -> None:
        """That of a file's cluster would else be there until the run ends: 30 GB of all. Logs stay."""
        for member in self.members:
            shutil.rmtree(self.data(member), ignore_errors=True)

    @property
    def ca(self) -> Path:
        return self._development.ca

    @property
    def token_file(self) -> Path:
        return self._development.token_file

    @property
    def cluster_file(self) -> Path:
        return self._development.cluster_file

    @property
    def admin_token(self) -> str:
        return self.token_file.read_text().strip()

    @property
    def nodes(self) -> list[Member]:
        return self._development.layout.of_role("node")

    @property
    def coordinators(self) -> list[Member]:
        return self._development.layout.of_role("coordinator")

    @property
    def members(self) -> list[Member]:
        return self._development.layout.members

    def pid(self, member: Member) -> int:
        return self._development.children[member.id].process.pid

    def data(self, member: Member) -> Path:
        return self._development.data(member)

    def logged(self, sql: str, *values: str) -> list[Any]:
        """What the log's state says, as the coordinator that is ahead has it: another may lag.

        What the leader has answered is in it.
        """
        found = []
        for member in self.coordinators:
            state = self.data(member) / "state.sqlite"
            with closing(sqlite3.connect(f"file:{state}?mode=ro", uri=True, isolation_level=None)) as db:
                db.execute("BEGIN")
                (index,) = db.execute("SELECT log_index FROM applied").fetchone()
                found.append((index, db.execute(sql, values).fetchall()))
        return max(found, key=lambda each: each[0])[1]

    def kill(self, *members: Member) -> None:
        """SIGKILL, all at once, then wait until they are gone."""
        children = [self._development.children[member.id] for member in members]
        for child in children:
            os.kill(child.process.pid, signal.SIGKILL)
        for child in children:
            child.process.wait()

    def terminate(self, *members: Member) -> None:
        """SIGTERM and the time to drain."""
        stop_children([self._development.children[member.id] for member in members])

    def restart(self, *members: Member) -> None:
        """Start processes that have ended; they are not ready yet."""
        for member in members:
            self._development.start_member(member)

    @contextmanager
    def down(self, *members: Member) -> Iterator[None]:
        """While they are killed. Afterwards all serve."""
        self.kill(*members)
        try:
            yield
        finally:
            self.restart(*members)
            self.wait_healthy()

    def runs(self, member: Member) -> bool:
        """Whether its process has not ended."""
        return self._development.children[member.id].runs

    def last_words(self, member: Member) -> str:
        """How its process ended, and the last line that it logged."""
        child = self._development.children[member.id]
        return f"{child.describe_end()}: {last_line(child.log)}"

    def add_node(self, node_id: str, token: str) -> Member:
        """A node joins; its process is started and not ready yet."""
        api_port, peer_port = free_ports(2)
        member = Member(id=node_id, role="node", api_port=api_port, peer_port=peer_port)
        self._development.add_node(member, token)
        return member

    def wait_healthy(self, timeout_s: float = 60.0) -> None:
        self._development.wait_healthy(timeout_s=timeout_s)

    def ready_nodes(self) -> list[Member]:
        """Those that take changes; one that has just lost the coordinators is still among them."""
        nodes = self._development.layout.of_role("node")
        return [node for node in nodes if is_ready(node.api_port, self.context)]

    def leader(self) -> Member:
        """The coordinator that leads now; the first node answers by its view, too."""
        found: list[str] = []

        def led() -> bool:
            answer = self.get("/cluster/status")
            is_served = self.get("/project-files").status == 200  # the status is told without a view, too
            if answer.status == 200 and answer.json["leader"] and is_served:
                found.append(answer.json["leader"])
            return bool(found)

        wait_until(led, what="a leader", timeout_s=20)
        return next(member for member in self.coordinators if member.id == found[-1])

    def request(
        self,
        method: str,
        path: str,
        *,
        node: Member | None = None,
        token: str | None = "",
        body: Any = None,
        content: bytes | Iterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        stranger: bool = False,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Answer:
        """One request.

        `path` is below /api/v1 unless absolute; token "" means the admin's, None none at all.
        """
        sent = dict(headers or {})
        if token is not None:
            sent.setdefault("Authorization", f"Bearer {token or self.admin_token}")
        if body is not None:
            content = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        if path.startswith("https://"):
            parts = urlsplit(path)
            host, port, path = parts.hostname or "", parts.port or 443, path.split(parts.netloc, 1)[1]
        else:
            host, port = "127.0.0.1", (node or self.nodes[0]).api_port
            path = (
                path
                if path.startswith(("/api/", "/.well-known", "/healthz", "/readyz", "/metrics"))
                else API + path
            )
        # A stranger has a loopback address of its own, so that rate limits of others do not touch it.
        connection = None if stranger else self._kept.take(host, port)
        if connection is None:
            source = (next(STRANGERS), 0) if stranger else None
            connection = http.client.HTTPSConnection(host, port, context=self.context, source_address=source)
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        is_done = False
        try:
            connection.request(method, path, body=content, headers=sent)
            response = connection.getresponse()
            received = {name.lower(): value for name, value in response.getheaders()}
            answer = Answer(response.status, received, response.read())
            is_done = not stranger and not response.will_close
            return answer
        finally:
            self._kept.give(connection) if is_done else connection.close()

    def get(self, path: str, **options: Any) -> Answer:
        return self.request("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        return self.request("POST", path, body=body, **options)

    def create(
        self, filename: str = "lab.gns3p", *, node: Member | None = None, token: str = "", **fields: Any
    ) -> Any:
        """A new project file; the upload initialisation result."""
        answer = self.post(
            "/project-files", {"filename": filename, "project_id": "lab", **fields}, node=node, token=token
        )
        assert answer.status == 201, answer.body
        return answer.json

    def store(self, content: bytes, filename: str = "lab.gns3p", *, token: str = "", **fields: Any) -> str:
        """A new project file with content; its file_uuid."""
        created = self.create(filename, token=token, size_bytes=len(content), **fields)
        answer = self.request("PUT", created["upload_url"], content=content, token=token)
        assert answer.status == 200, answer.body
        return str(created["file_uuid"])

    def store_everywhere(self, content: bytes) -> str:
        """The same; every node of three has its replica then, where the write quorum is content with two."""
        file_uuid = self.store(content)
        self.wait_everywhere(hashlib.sha256(content).hexdigest())
        return file_uuid

    def wait_everywhere(self, sha256: str) -> None:
        wait_until(
            lambda: all(self.holds(node, sha256) for node in self.nodes), what="every replica", timeout_s=60
        )

    def holds(self, node: Member, sha256: str) -> bool:
        """Whether a node has a blob on its disk, wherever it lies there."""
        return is_on(self.data(node), sha256)

    def replica(self, node: Member, name: str) -> Path:
        """Where a node keeps a blob that is a file by its sha256, or its sidecar."""
        return file_of(self.data(node), name)

    def user_token(self, user_id: str, **fields: Any) -> str:
        """A token of a user without roles."""
        answer = self.post(f"/auth/users/{user_id}/token", fields)
        assert answer.status == 200, answer.body
        return self.remember(str(answer.json["token"]))

    def join_token(self, *, node: Member | None = None, **fields: Any) -> str:
        answer = self.post("/cluster/join-tokens", fields, node=node)
        assert answer.status == 201, answer.body
        return self.remember(str(answer.json["token"]))

    def remember(self, token: str) -> str:
        """A secret that no log may hold; only its secret part is, the rest names it."""
        parts = token.split(".")
        self.secrets.add(parts[2] if len(parts) > 2 else token)
        return token

    def leaked_secrets(self) -> list[str]:
        """Which logs, audit logs included, hold a secret that this cluster ever gave us."""
        self.remember(self.admin_token)
        texts = self.logs() | {
            f"{member.id} audit": path.read_text()
            for member in self.members
            for path in self.data(member).glob("*.log")
            if path.is_file()
        }
        private = "PRIVATE" + " KEY"
        return [
            name
            for name, text in texts.items()
            if private in text or any(secret in text for secret in self.secrets)
        ]

    def curl(self, *arguments: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[bytes]:
        """curl with the root certificate and the admin token; bytes on stdout. Skips where there is none."""
        require_curl()
        return subprocess.run(
            ["curl", "-K", str(self._development.curl_file), *arguments],
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )

    def command_environment(self, **changes: str) -> dict[str, str]:
        """Where the installed command finds this cluster."""
        return os.environ | {
            "FILESTORE_URL": " ".join(node.url for node in self.nodes),
            "FILESTORE_CA": str(self.ca),
            "FILESTORE_TOKEN_FILE": str(self.token_file),
            "XDG_STATE_HOME": str(self.directory / "state"),
            **changes,
        }

    def filestore(
        self, *arguments: str, stdin: bytes = b"", **environment: str
    ) -> subprocess.CompletedProcess[bytes]:
        """The installed command, run to its end."""
        return run_filestore(arguments, self.command_environment(**environment), stdin)

    def logs(self) -> dict[str, str]:
        """Everything that the processes have written, by member id."""
        return {path.stem: path.read_text() for path in (self.directory / "logs").glob("*.log")}


def run_filestore(
    arguments: Sequence[str], environment: Mapping[str, str], stdin: bytes = b"", timeout_s: float = 120.0
) -> subprocess.CompletedProcess[bytes]:
    """The installed command, run to its end."""
    process_of: type[subprocess.Popen[bytes]] = Forked if can_fork(environment) else subprocess.Popen
    pipe = subprocess.PIPE
    command = [FILESTORE, *arguments]
    with process_of(command, env=dict(environment), stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            output, errors = process.communicate(stdin, timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def peak_memory_bytes(pid: int) -> int:
    """VmHWM: the most that a process ever had in memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} tells no VmHWM")


def forget_peak_memory(pid: int) -> None:
    """From now on `peak_memory_bytes` is what the process has, and what is added to that."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def random_file(path: Path, size_bytes: int) -> str:
    """Fill a file with random bytes; its sha256."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for start in range(0, size_bytes, 1 << 20):
            part = os.urandom(min(1 << 20, size_bytes - start))
            digest.update(part)
            file.write(part)
    return digest.hexdigest()
