"""A GNS3 server process with data of its own, and what a test does with it: no code of ours in between.

It runs no emulators. Programs that only answer stand in for VPCS and uBridge, so that there are nodes that
run, and one that is never started for QEMU.
"""

import base64
import http.client
import json
import os
import secrets
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

from ca.webcertificate import WebCertificateFiles
from deploy.processes import free_ports, wait_until
from tests.web_certificates import trusting

PASSWORD: Final = "of the test"
COMPUTE_PASSWORD: Final = "of the compute"
CLOSED_AFTER_S: Final = 7.0  # since its last listener has gone: GNS3 waits for 5 s; its log has whole seconds
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 60.0
REQUEST_TIMEOUT_S: Final = 120.0
FOLDERS: Final = ("home", "images", "projects", "appliances", "symbols", "configs", "secrets", "bin")
QEMU: Final = """#!/bin/sh
echo "QEMU emulator version 8.2.0"
"""
STAND_IN: Final = """#!{python}
import socketserver, sys
if "-v" in sys.argv:
    print("Welcome to Virtual PC Simulator, version 0.8.2; ubridge version 0.9.19")
    sys.exit()
option = "-p" if "-p" in sys.argv else "-H"
port = int(sys.argv[sys.argv.index(option) + 1].rpartition(":")[2])
class Answering(socketserver.StreamRequestHandler):
    def handle(self):
        while self.rfile.readline():
            self.wfile.write(b"100-OK\\r\\n")
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer.daemon_threads = True
socketserver.ThreadingTCPServer(("127.0.0.1", port), Answering).serve_forever()
"""


_WITHOUT_OVERRIDE: Final = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")


class LabServer:
    """Use as a context manager."""

    api = "v3"

    def __init__(
        self,
        program: Path,
        directory: Path,
        *,
        token_minutes: int = 1440,
        pair: WebCertificateFiles | None = None,
        obeys_modes: bool = False,
    ) -> None:
        """`pair`: its certificate for 127.0.0.1, where it speaks https.

        `obeys_modes`: permissions of files hold for it, also if root runs the test.
        """
        self._program, self.directory, self._token_minutes = program, directory, token_minutes
        self._pair = pair
        self._wrapper = _WITHOUT_OVERRIDE if obeys_modes else ()
        self.port, first_port = free_ports(2)
        self.url = f"{'http' if pair is None else 'https'}://127.0.0.1:{self.port}"
        self._console_port = first_port
        self._process: subprocess.Popen[bytes] | None = None
        self._token = ""
        self._started_at_byte = 0  # of the log
        for name in FOLDERS:
            (directory / name).mkdir(parents=True)
        stand_in = STAND_IN.format(python=sys.executable)
        for name, text in (("qemu-system-x86_64", QEMU), ("vpcs", stand_in), ("ubridge", stand_in)):
            (directory / "bin" / name).write_text(text)
            (directory / "bin" / name).chmod(0o755)
        self.password_file = self._secret("password", PASSWORD)
        self.compute_password_file = self._secret("compute-password", COMPUTE_PASSWORD)
        self._configure()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def projects_path(self) -> Path:
        return self.directory / "projects"

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start the process, or start it again, and wait until it answers."""
        with (self.directory / "log").open("ab") as log:
            self._started_at_byte = log.tell()
            self._process = subprocess.Popen(
                [*self._wrapper, self._program, "--config", str(self.directory / "gns3_server.conf")],
                env={
                    "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}",
                    "HOME": str(self.directory / "home"),
                    "LANG": "C.UTF-8",
                },
                cwd=self.directory,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._token = ""
        wait_until(self._answers, what="a GNS3 server", timeout_s=START_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL, also of the nodes that run."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """SIGTERM, and wait for its end: its database is closed then."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(STOP_TIMEOUT_S)
        self._process = None

    def send(self, number: int) -> None:
        """A signal to the process alone."""
        assert self._process is not None
        os.kill(self._process.pid, number)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """One request by the admin; status and body."""
        sent = dict(headers or {})
        if "Authorization" not in sent and not (self.api == "v3" and path == "/version"):
            sent["Authorization"] = self._authorization()
        if body is not None:
            content = json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        return self._exchange(method, path, content, sent)

    def call(self, method: str, path: str, body: Any = None, *, content: bytes | None = None) -> Any:
        """The same, which must succeed; the JSON of the answer."""
        status, answer = self.request(method, path, body, content=content)
        assert status < 400, (method, path, status, answer)
        return json.loads(answer) if answer else None

    def projects(self) -> dict[str, Any]:
        """Every project by its name."""
        return {project["name"]: project for project in self.call("GET", "/projects")}

    def make_project(self, name: str, files: Mapping[str, bytes] | None = None, *, nodes: int = 2) -> str:
        """A project with some PCs that never ran, a note, and files; closed. Its id."""
        project_id = str(self.call("POST", "/projects", {"name": name})["project_id"])
        for number in range(nodes):
            body = {"name": f"PC{number}", "node_type": "vpcs", "compute_id": "local", "x": 50 * number}
            self.call("POST", f"/projects/{project_id}/nodes", body)
        note = {"svg": f'<svg height="20" width="90"><text>{secrets.token_hex(4)}</text></svg>'}
        self.call("POST", f"/projects/{project_id}/drawings", note)
        for path, content in (files or {}).items():
            self.write(project_id, path, content)
        self.close(project_id)
        return project_id

    def add_qemu(self, project_id: str, name: str, **properties: Any) -> str:
        """A QEMU node in a project, which is open then; the id of the node."""
        self.open(project_id)
        body = {
            "name": name,
            "node_type": "qemu",
            "compute_id": "local",
            "properties": {"platform": "x86_64", "adapters": 0, **properties},
        }
        return str(self.call("POST", f"/projects/{project_id}/nodes", body)["node_id"])

    def start_nodes(self, project_id: str) -> None:
        """Open a project and start its nodes."""
        self.open(project_id)
        self.call("POST", f"/projects/{project_id}/nodes/start", {})
        nodes = self.call("GET", f"/projects/{project_id}/nodes")
        assert {node["status"] for node in nodes} == {"started"}, self.log[-2000:]

    def stop_nodes(self, project_id: str) -> None:
        """Stop them."""
        self.call("POST", f"/projects/{project_id}/nodes/stop", {})

    def open(self, project_id: str) -> None:
        """Open a project, once nothing closes it any more.

        A backup listens to it. When the last listener has gone GNS3 waits, and closes the project then.
        """
        wait_until(lambda: self._is_left_alone(project_id), what="listeners that have gone", timeout_s=30)
        self.call("POST", f"/projects/{project_id}/open", {})

    def _is_left_alone(self, project_id: str) -> bool:
        log = (self.directory / "log").read_bytes()[self._started_at_byte :].decode(errors="replace")
        told = [line for line in log.splitlines() if f"project ID '{project_id}'" in line]
        gone = [line for line in told if "Client has disconnected" in line]
        if len(gone) < sum("New client has connected" in line for line in told):
            return False
        if not gone:
            return True
        since = datetime.now() - datetime.fromisoformat(gone[-1][:19])  # noqa: DTZ005 - as the log has it
        return since.total_seconds() > CLOSED_AFTER_S

    def close(self, project_id: str) -> None:
        self.call("POST", f"/projects/{project_id}/close", {})

    def delete(self, project_id: str) -> None:
        self.call("DELETE", f"/projects/{project_id}")

    def write(self, project_id: str, path: str, content: bytes) -> None:
        """A file of the project, as an emulator would write it."""
        target = self.projects_path / project_id / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)

    def upload_image(self, name: str, content: bytes) -> str:
        """An image; its MD5."""
        image = self.call("POST", f"/images/upload/{quote(name)}", content=content)
        return str(image["checksum"])

    def images(self) -> dict[str, str]:
        """MD5s of images by their names."""
        return {image["filename"]: image["checksum"] for image in self.call("GET", "/images")}

    def compute_headers(self) -> dict[str, str]:
        """Who may read images."""
        login = base64.b64encode(f"gns3:{COMPUTE_PASSWORD}".encode()).decode()
        return {"Authorization": f"Basic {login}"}

    def make_role(self, privileges: Iterable[str]) -> str:
        """A role with these privileges and no others; its name."""
        name = f"role{uuid.uuid4().hex[:8]}"
        role = self.call("POST", "/access/roles", {"name": name, "description": name})
        known = {each["name"]: each["privilege_id"] for each in self.call("GET", "/access/privileges")}
        for privilege in privileges:
            self.call("PUT", f"/access/roles/{role['role_id']}/privileges/{known[privilege]}")
        return name

    def user_with(self, role: str) -> tuple[str, Path]:
        """A user with this role for everything; the name, and a file with the password."""
        name = f"user{uuid.uuid4().hex[:8]}"
        body = {"username": name, "password": f"{PASSWORD} {name}", "email": f"{name}@lab.example"}
        user = self.call("POST", "/access/users", body)
        roles = {each["name"]: each["role_id"] for each in self.call("GET", "/access/roles")}
        entry = {
            "ace_type": "user",
            "user_id": user["user_id"],
            "role_id": roles[role],
            "path": "/",
            "propagate": True,
        }
        self.call("POST", "/access/acl", entry)
        return name, self._secret(name, body["password"])

    def files_of(self, project_id: str) -> dict[str, bytes]:
        """Every file of a project by its path, but for the topology, of which an import makes another."""
        root = self.projects_path / project_id
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file() and ".gns3" not in path.name
        }

    def _authorization(self) -> str:
        if not self._token:
            body = json.dumps({"username": "admin", "password": PASSWORD}).encode()
            headers = {"Content-Type": "application/json"}
            status, answer = self._exchange("POST", "/access/users/authenticate", body, headers)
            assert status == 200, answer
            self._token = str(json.loads(answer)["access_token"])
        return f"Bearer {self._token}"

    def _exchange(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        address = ("127.0.0.1", self.port)
        connection = http.client.HTTPConnection(*address, timeout=REQUEST_TIMEOUT_S)
        if self._pair is not None:
            context = trusting(self._pair.certificate)
            connection = http.client.HTTPSConnection(*address, timeout=REQUEST_TIMEOUT_S, context=context)
        try:
            connection.request(method, f"/{self.api}{path}", body=content, headers=dict(headers))
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log[-2000:]
        try:
            return self.request("GET", "/version")[0] == 200
        except OSError:
            return False

    def _secret(self, name: str, text: str) -> Path:
        path = self.directory / f"{name}.secret"
        path.write_text(f"{text}\n")
        path.chmod(0o600)
        return path

    def _settings_of_version(self) -> list[str]:
        return [
            "enable_builtin_templates = False",
            f"secrets_dir = {self.directory / 'secrets'}",
            "compute_username = gns3",
            f"compute_password = {COMPUTE_PASSWORD}",
            "[Controller]",
            "default_admin_username = admin",
            f"default_admin_password = {PASSWORD}",
            f"jwt_access_token_expire_minutes = {self._token_minutes}",
        ]

    def _settings_of_tls(self) -> list[str]:
        if self._pair is None:
            return []
        return ["enable_ssl = True", f"certfile = {self._pair.certificate}", f"certkey = {self._pair.key}"]

    def _configure(self) -> None:
        lines = [
            "[Server]",
            "host = 127.0.0.1",
            f"port = {self.port}",
            *(f"{name}_path = {self.directory / name}" for name in FOLDERS[1:6]),
            "report_errors = False",
            "install_builtin_appliances = False",
            f"console_start_port_range = {self._console_port}",
            f"console_end_port_range = {self._console_port + 600}",
            f"udp_start_port_range = {self._console_port}",
            f"udp_end_port_range = {self._console_port + 600}",
            *self._settings_of_tls(),
            *self._settings_of_version(),
        ]
        (self.directory / "gns3_server.conf").write_text("\n".join(lines) + "\n")


class LabServer2(LabServer):
    """One of GNS3 2.2: no users, and images are the compute's."""

    api = "v2"

    def delete(self, project_id: str) -> None:
        """Of a server that has just started: it can only delete once it has opened a project."""
        self.request("POST", f"/projects/{project_id}/open", {})
        super().delete(project_id)

    def upload_image(self, name: str, content: bytes) -> str:
        self.request("POST", f"/compute/qemu/images/{quote(name)}", content=content)
        return self.images()[name]

    def images(self) -> dict[str, str]:
        listed = self.call("GET", "/compute/qemu/images")
        return {image["filename"]: image["md5sum"] for image in listed}

    def _authorization(self) -> str:
        login = base64.b64encode(f"admin:{PASSWORD}".encode()).decode()
        return f"Basic {login}"

    def _settings_of_version(self) -> list[str]:
        return ["auth = True", "user = admin", f"password = {PASSWORD}"]
