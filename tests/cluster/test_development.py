"""`filestore dev`: from nothing to healthy, stopped, started again on the same data, refused twice."""

import json
import os
import re
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deploy.processes import wait_until
from tests.cluster.harness import FILESTORE, run_filestore

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 40.0


@contextmanager
def development(data: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [FILESTORE, "dev", "--data", str(data)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        wait_until(
            lambda: (data / "cluster.json").exists() or process.poll() is not None,
            what="cluster.json",
            timeout_s=START_TIMEOUT_S,
        )
        assert process.poll() is None, process.communicate()
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=STOP_TIMEOUT_S)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.long
def test_start_is_told_step_by_step_and_ends_with_short_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with development(tmp_path / ".filestore") as process:
        process.send_signal(signal.SIGTERM)
        shown, told = process.communicate(timeout=STOP_TIMEOUT_S)
    steps = told.decode().splitlines()
    assert steps[0].startswith("Starting a cluster")
    assert "Starting coordinator-1, coordinator-2, coordinator-3." in steps
    assert re.search(r"^  \S*filestore put \.filestore/coordinator-1/ca\.pem$", shown.decode(), re.MULTILINE)


@pytest.mark.long
def test_development_cluster_starts_stops_and_starts_again_on_its_data(tmp_path: Path) -> None:
    data = tmp_path / "dev"
    with development(data) as process:
        first = json.loads((data / "cluster.json").read_text())
        assert [len(first[role]) for role in ("nodes", "coordinators")] == [3, 3]
        assert stat.S_IMODE(Path(first["admin_token_file"]).stat().st_mode) == 0o600
        stored = run_filestore(["put", first["ca"], "--project-id", "dev"], environment(first, tmp_path))
        assert stored.returncode == 0, stored.stderr
        refused = run_filestore(["dev", "--data", str(data)], dict(os.environ))
        assert (refused.returncode, refused.stderr[:20]) == (5, b"filestore: conflict:")
        assert (data / "cluster.json").exists()
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=STOP_TIMEOUT_S)
        assert process.returncode == 0
    assert all(node["url"].encode() in output for node in first["nodes"])
    assert not (data / "cluster.json").exists()
    assert not any(is_alive(member["pid"]) for member in first["nodes"] + first["coordinators"])
    with development(data) as process:
        second = json.loads((data / "cluster.json").read_text())
        assert [node["url"] for node in second["nodes"]] == [node["url"] for node in first["nodes"]]
        file_uuid = stored.stdout.decode().strip()
        got = run_filestore(["get", file_uuid, "-o", "-"], environment(second, tmp_path))
        assert got.stdout == Path(first["ca"]).read_bytes()


@pytest.mark.long
def test_dead_child_is_reported_and_children_end_with_their_parent(tmp_path: Path) -> None:
    data = tmp_path / "dev"
    with development(data) as process:
        described = json.loads((data / "cluster.json").read_text())
        pids = [member["pid"] for member in described["nodes"] + described["coordinators"]]
        os.kill(pids[0], signal.SIGKILL)
        assert process.stderr is not None
        line = next(line for line in map(bytes.decode, process.stderr) if "signal" in line)
        assert described["nodes"][0]["id"] in line
        assert "signal 9" in line
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_until(lambda: not any(map(is_alive, pids)), what="the end of the children", timeout_s=10)


def environment(described: dict[str, Any], directory: Path) -> dict[str, str]:
    return os.environ | {
        "FILESTORE_URL": described["nodes"][0]["url"],
        "FILESTORE_CA": described["ca"],
        "FILESTORE_TOKEN_FILE": described["admin_token_file"],
        "XDG_STATE_HOME": str(directory / "state"),
    }
