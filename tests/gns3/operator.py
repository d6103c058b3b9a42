"""Who runs `filestore gns3`: a configuration of their own, and the command as a process."""

import json
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cluster.harness import FILESTORE, Cluster
from tests.gns3.lab_server import LabServer

COMMAND_TIMEOUT_S = 300.0


class Operator:
    """Commands that find the store, and the servers that were signed in to."""

    def __init__(self, store: Cluster, directory: Path) -> None:
        self.store, self.directory = store, directory
        self.environment = store.command_environment(
            XDG_CONFIG_HOME=str(directory / "config"), XDG_STATE_HOME=str(directory / "state")
        )

    def login(self, name: str, server: LabServer) -> None:
        """As the admin, with the credentials of the compute. Those of GNS3 2.2 are the same."""
        compute = ["--compute-user", "gns3", "--compute-password-file", str(server.compute_password_file)]
        options = compute if server.api == "v3" else []
        self.do("login", server.url, "--name", name, "--password-file", str(server.password_file), *options)

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """A command that runs."""
        return subprocess.Popen(
            [FILESTORE, "gns3", *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """A command to its end: exit code, and what it said on both streams."""
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=COMMAND_TIMEOUT_S)
        finally:
            process.kill()
            process.wait()
        return process.returncode, out.decode(), err.decode()

    def do(self, *arguments: str) -> str:
        """A command that must succeed, and say nothing on standard error; what it says."""
        code, out, err = self.run(*arguments)
        assert (code, err) == (0, ""), (code, out, err)
        return out

    def json(self, *arguments: str, codes: Sequence[int] = (0,)) -> list[dict[str, Any]]:
        """The records that a command prints with --json."""
        code, out, err = self.run(*arguments, "--json")
        assert code in codes, (code, out, err)
        return [json.loads(line) for line in out.splitlines()]

    def backup(self, *arguments: str, codes: Sequence[int] = (0,)) -> dict[str, str]:
        """A backup; the status of each project by its name."""
        rows = self.json("backup", *arguments, codes=codes)
        return {row["name"]: row["status"] for row in rows}

    def stored_bytes(self) -> int:
        """What the blobs of all nodes take."""
        return sum(
            path.stat().st_size
            for node in self.store.nodes
            for path in (self.store.data(node) / "blobs").rglob("*")
            if path.is_file()
        )

    def project_files(self, **filters: str) -> list[dict[str, Any]]:
        """Records of project files in the store, unfinished uploads included."""
        query = "&".join(f"{name}={value}" for name, value in filters.items())
        found: list[dict[str, Any]] = self.store.get(f"/project-files?limit=1000&{query}").json[
            "project_files"
        ]
        return found
