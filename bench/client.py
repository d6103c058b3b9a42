"""Compare the Python client with curl: one file, uploaded and downloaded over TLS, one node, one replica.

    python -m bench.client        (CLIENT_MIB=128 for a shorter run)

The client is installed from its wheel into a separate environment, and runs in a separate process: once with
asyncio's loop, once with uvloop. It does more than curl: it hashes the bytes that it sends and writes,
compares them with the stored digest, and syncs a download before it renames it. `curl and sums` does the
same: SHA-256 of the file after curl, and a sync of a download. The movers take turns, so that a slow minute
affects all.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Protocol

from bench.one_node import remove_blobs
from bench.rows import Figure, Row, report
from bench.wheel import build_wheel, clean_environment, installed
from deploy.dev_cluster import DevelopmentCluster

RUNS = 3
FILE_BYTES = int(os.environ.get("CLIENT_MIB", "1024")) << 20
RATIO_MIN = 0.9
MIB: Final = 1 << 20
TRANSFERS: Final = Path(__file__).with_name("client_transfers.py")
# Use the hash library that the client uses: a sha256sum that is built without it is many times slower.
_PROGRAM: Final = (
    "import hashlib, sys; print(hashlib.file_digest(open(sys.argv[1], 'rb'), 'sha256').hexdigest())"
)
SHA256: Final = (sys.executable, "-c", _PROGRAM)


class Mover(Protocol):
    """A program that transfers the file. Methods return seconds and CPU seconds; `up` also the file_uuid."""

    def up(self, path: Path) -> tuple[float, float, str]:
        """Upload it as a new file."""

    def down(self, file_uuid: str, path: Path) -> tuple[float, float]:
        """Download it to this path."""


class Curl:
    """curl. With `has_sums`, also the checksums and syncs that verify the bytes."""

    def __init__(self, node_url: str, settings: Path, *, has_sums: bool) -> None:
        self._command = ["curl", "--silent", "--show-error", "--fail", "-K", str(settings)]
        self._node_url = node_url
        self._has_sums = has_sums

    def up(self, path: Path) -> tuple[float, float, str]:
        """See Mover. The record is created first, outside of the measured time."""
        body = {"filename": path.name, "backup_type": "full", "size_bytes": path.stat().st_size}
        kind, url = "Content-Type: application/json", f"{self._node_url}/api/v1/backups"
        told = subprocess.check_output([*self._command, "-H", kind, "-d", json.dumps(body), url])
        made = json.loads(told)
        sums = [[*SHA256, str(path)]] if self._has_sums else []
        transfer = [*self._command, "-o", "/dev/null", "-T", str(path), made["upload_url"]]
        return *_timed(transfer, *sums), str(made["file_uuid"])

    def down(self, file_uuid: str, path: Path) -> tuple[float, float]:
        """See Mover."""
        sums = [[*SHA256, str(path)], ["sync", str(path)]] if self._has_sums else []
        url = f"{self._node_url}/api/v1/files/{file_uuid}"
        return _timed([*self._command, "-o", str(path), url], *sums)


class Installed:
    """The client that is installed for an interpreter."""

    def __init__(self, python: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [str(python), str(TRANSFERS)],
            cwd=python.parent,
            env=clean_environment() | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._line()

    def up(self, path: Path) -> tuple[float, float, str]:
        """See Mover."""
        return self._told(f"up {path}")

    def down(self, file_uuid: str, path: Path) -> tuple[float, float]:
        """See Mover."""
        return self._told(f"down {file_uuid} {path}")[:2]

    def stop(self) -> None:
        """End its process."""
        self._process.communicate()

    def _told(self, order: str) -> tuple[float, float, str]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order}\n")
        elapsed, cpu, file_uuid = self._line().split()
        return float(elapsed), float(cpu), file_uuid

    def _line(self) -> str:
        assert self._process.stdout is not None
        line: str = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the client ended; what it says is above")
        return line


def _timed(*commands: list[str]) -> tuple[float, float]:
    """Run the commands one after another, and return their seconds and CPU seconds."""
    began, before = time.perf_counter(), os.times()
    for command in commands:
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - began, cpu_s


@contextmanager
def _movers(directory: Path, cluster: DevelopmentCluster) -> Iterator[dict[str, Mover]]:
    node = cluster.layout.of_role("node")[0]
    environment = {
        "FILESTORE_URL": node.url,
        "FILESTORE_CA": str(cluster.ca),
        "FILESTORE_TOKEN_FILE": str(cluster.token_file),
        "XDG_STATE_HOME": str(directory / "state"),
    }
    wheel = build_wheel(directory)
    with ExitStack() as stack:
        movers: dict[str, Mover] = {
            "curl": Curl(node.url, cluster.curl_file, has_sums=False),
            "curl and sums": Curl(node.url, cluster.curl_file, has_sums=True),
        }
        for loop, extra in (("asyncio", ""), ("uvloop", "[uvloop]")):
            python = installed(directory / loop, f"{wheel}{extra}")
            client = Installed(python, environment)
            stack.callback(client.stop)
            movers[loop] = client
        yield movers


class Bench:
    """One file, and the movers that transfer it."""

    def __init__(self, directory: Path, cluster: DevelopmentCluster, movers: Mapping[str, Mover]) -> None:
        self._blobs = cluster.data(cluster.layout.of_role("node")[0]) / "blobs"
        self._movers = movers
        self._source, self._copy = directory / "source.bin", directory / "copy.bin"
        with self._source.open("wb") as file:
            for _ in range(FILE_BYTES // MIB):
                file.write(os.urandom(MIB))

    def uploads(self) -> list[dict[str, Figure]]:
        """Return the upload figures of each mover, run by run. Each upload has new content."""
        return [self._taking_turns(run, self._up) for run in range(RUNS + 1)][1:]

    def downloads(self) -> list[dict[str, Figure]]:
        """Return the download figures of each mover, run by run, from the node's page cache."""
        file_uuid = self._movers["uvloop"].up(self._source)[2]
        try:
            return [
                self._taking_turns(run, lambda mover: self._down(mover, file_uuid)) for run in range(RUNS + 1)
            ][1:]
        finally:
            remove_blobs(self._blobs)

    def _taking_turns(self, run: int, move: "Move") -> dict[str, Figure]:
        names = list(self._movers)
        names = names[run % len(names) :] + names[: run % len(names)]
        return {name: move(self._movers[name]) for name in names}

    def _up(self, mover: Mover) -> Figure:
        with self._source.open("r+b") as file:
            file.write(os.urandom(64))
        os.sync()
        elapsed_s, cpu_s, _ = mover.up(self._source)
        remove_blobs(self._blobs)
        return _figure(elapsed_s, cpu_s)

    def _down(self, mover: Mover, file_uuid: str) -> Figure:
        self._copy.unlink(missing_ok=True)
        os.sync()
        elapsed_s, cpu_s = mover.down(file_uuid, self._copy)
        assert self._copy.stat().st_size == FILE_BYTES
        return _figure(elapsed_s, cpu_s)


class Move(Protocol):
    """One transfer."""

    def __call__(self, mover: Mover) -> Figure:
        """Transfer the file with this mover, and return the figure."""


def _figure(elapsed_s: float, cpu_s: float) -> Figure:
    return Figure(FILE_BYTES / MIB / elapsed_s, cpu_s * (1 << 30) / FILE_BYTES)


def rows(directory: Path) -> list[Row]:
    """Return a row for each loop, direction and yardstick. Raises Skipped if pip gets no packages."""
    cluster = DevelopmentCluster(directory / "cluster", node_count=1, replicas=1, write_quorum=1)
    try:
        cluster.start()
        with _movers(directory, cluster) as movers:
            bench = Bench(directory, cluster, movers)
            measured = {"upload": bench.uploads(), "download": bench.downloads()}
    finally:
        cluster.stop()
    return [
        Row.compared(
            f"{direction} of {FILE_BYTES // MIB} MiB, {loop} / {yardstick}",
            "MiB/s",
            RATIO_MIN if yardstick == "curl" else 0,
            [(run[loop], run[yardstick]) for run in runs],
        )
        for direction, runs in measured.items()
        for loop in ("asyncio", "uvloop")
        for yardstick in ("curl", "curl and sums")
    ]


def main() -> None:
    """Print the table and the JSON line."""
    report("client", RUNS, rows, title="; CPU s per GiB of the mover")


if __name__ == "__main__":
    main()
