"""Cold replicas: `make bench BENCH=cold`.

Nights of projects of which one block in a hundred changes, stored by a cluster of three nodes (as files, then
as chunks), and beside it by restic and borg, where these are installed, on the same directory in the same
run. Then a node of one replica: how fast content turns cold, downloads of cold and of hot content, whole and
in ranges of 1 MiB, turn by turn, and downloads of small files while content turns cold. Last, a node with a
million chunks: how long it takes to open them, and how much memory. COLD_PROJECTS, COLD_MB, COLD_NIGHTS,
COLD_WHOLE_MB and COLD_CHUNKS change the sizes.
"""

import asyncio
import hashlib
import http.client
import os
import random
import re
import shutil
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final, ParamSpec

from bench.one_node import OneNode
from deploy.dev_cluster import DevelopmentCluster, Member
from deploy.processes import LOOPBACK
from node.cold.chunks import ChunkStore

PROJECTS: Final = int(os.environ.get("COLD_PROJECTS", "30"))
PROJECT_BYTES: Final = int(os.environ.get("COLD_MB", "50")) * 1_000_000
NIGHTS: Final = int(os.environ.get("COLD_NIGHTS", "7"))
CHUNKS: Final = int(os.environ.get("COLD_CHUNKS", "1000000"))
WHOLE_BYTES: Final = int(os.environ.get("COLD_WHOLE_MB", "1024")) << 20
RANGE_BYTES: Final = 1 << 20
RANGES: Final = 200
SMALL_BYTES: Final = 256 << 10
SMALL_FILES: Final = 50
LATENCIES: Final = 5000
TURNS: Final = 3
BLOCK_BYTES: Final = 4096
FREEZE_S_MAX: Final = 900.0
_RECEIVED: Final = re.compile(r"^filestore_upload_bytes_total (\S+)$", re.MULTILINE)
CHANGED_SHARE: Final = 0.01
_P = ParamSpec("_P")
_WORDS: Final = [
    b"interface",
    b"router",
    b"ospf",
    b"10.0.0.",
    b"permit",
    b"shutdown",
    b"vlan",
    b"description",
]


def text(dice: random.Random, size_bytes: int) -> bytes:
    """Configurations and logs."""
    lines = (b" ".join(dice.choices(_WORDS, k=6)) + b" %d\n" % dice.randrange(1000) for _ in range(20_000))
    block = b"".join(lines)
    return (block * (size_bytes // len(block) + 1))[:size_bytes]


class Project:
    """A directory with an image of a disk, text, and a zip of text, as an export has them."""

    def __init__(self, path: Path, number: int) -> None:
        self._dice, self._path = random.Random(number), path
        path.mkdir(parents=True)
        image_bytes = PROJECT_BYTES * 7 // 10
        system = random.Random(number % 3)  # three systems on all images
        image = bytearray(system.randbytes(image_bytes // 3) + text(system, image_bytes // 3))
        image += bytes(image_bytes - len(image))
        (path / "disk.qcow2").write_bytes(image)
        (path / "log.txt").write_bytes(text(self._dice, PROJECT_BYTES * 2 // 10))
        self._zip()

    def change(self) -> None:
        """One block in a hundred of the image changes, in runs of eight; the text grows."""
        with (self._path / "disk.qcow2").open("r+b") as file:
            blocks = (self._path / "disk.qcow2").stat().st_size // BLOCK_BYTES
            for _ in range(max(1, int(blocks * CHANGED_SHARE / 8))):
                file.seek(self._dice.randrange(blocks - 8) * BLOCK_BYTES)
                file.write(self._dice.randbytes(8 * BLOCK_BYTES))
        with (self._path / "log.txt").open("ab") as file:
            file.write(text(self._dice, 20_000))
        self._zip()

    def _zip(self) -> None:
        with zipfile.ZipFile(self._path / "configs.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("startup.cfg", text(self._dice, PROJECT_BYTES // 10))


def show(name: str, value: str, beside: str = "") -> None:
    """One line of the result."""
    sys.stdout.write(f"{name:<44} {value:<24} {beside}\n")
    sys.stdout.flush()


def size_of(path: Path) -> int:
    """The bytes of all files below a directory."""
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


def timed(work: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> float:
    """The seconds of a call."""
    began_s = time.perf_counter()
    work(*args, **kwargs)
    return time.perf_counter() - began_s


class Product:
    """A cluster of three nodes, three replicas; its bucket is cold."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.cluster = DevelopmentCluster(directory / "cluster", node_count=3, replicas=3)
        stack.callback(self.cluster.stop)
        self.cluster.start()
        self.nodes = [self.cluster.data(each) for each in self.cluster.layout.of_role("node")]
        self.bucket_id = asyncio.run(self._make_bucket())

    async def _make_bucket(self) -> str:
        async with self.cluster.client() as client:
            made = await client.buckets.create("nights")
            await client.buckets.update(made.bucket_id, storage="cold")
            return made.bucket_id

    def put(self, source: Path) -> None:
        """Upload every file of every project, four at a time, as `filestore put -r` does."""
        asyncio.run(self._put(source))

    async def _put(self, source: Path) -> None:
        paths = [path for path in sorted(source.rglob("*")) if path.is_file()]
        async with self.cluster.client() as client:
            turn = asyncio.Semaphore(4)

            async def upload(path: Path) -> None:
                async with turn:
                    await client.files.upload(
                        path,
                        kind="backup",
                        bucket_id=self.bucket_id,
                        path=str(path.parent.relative_to(source)),
                        resume=False,
                    )

            await asyncio.gather(*(upload(path) for path in paths))

    def received_bytes(self) -> float:
        """The bytes that the nodes have received from clients for uploads so far."""
        texts = [_get_text(self.cluster, node) for node in self.cluster.layout.of_role("node")]
        return sum(float(found[1]) for text in texts if (found := _RECEIVED.search(text)))

    def freeze(self) -> float:
        """Run the job until no replica is a file; return the seconds of its runs.

        What was just uploaded turns cold only once its upload is forgotten.
        """
        took_s, ends_at_s = 0.0, time.monotonic() + FREEZE_S_MAX
        while any(path for node in self.nodes for path in node.glob("blobs/*/*/*")):
            if time.monotonic() > ends_at_s:
                raise RuntimeError("some replicas stay hot")
            took_s += timed(_run_job, self.cluster, "freeze")
            time.sleep(2)
        return took_s

    def stored_bytes(self) -> float:
        """Bytes of one replica of all, on average: chunks, manifests, and what is a file still."""
        parts = ("chunks", "cold", "blobs", "packs")
        index = sum(each.stat().st_size for node in self.nodes for each in node.glob("*/index.sqlite*"))
        return (sum(size_of(node / part) for node in self.nodes for part in parts) - index) / len(self.nodes)


def _get_text(cluster: DevelopmentCluster, node: Member) -> str:
    """Return the metrics of a node."""
    context = ssl.create_default_context(cafile=str(cluster.ca))
    with closing(http.client.HTTPSConnection(LOOPBACK, node.api_port, context=context)) as connection:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()


async def run_job(cluster: DevelopmentCluster, name: str) -> dict[str, Any]:
    """Trigger a job and wait for its end."""
    async with cluster.client() as client:
        run = await client.jobs.wait((await client.jobs.trigger(name)).run_id)
        if run.status != "completed" or not isinstance(run.result, dict):
            raise RuntimeError(f"{name}: {run.status} {run.result}")
        return run.result


def other_stores(directory: Path) -> Iterator[tuple[str, Path, Callable[[Path, int], None]]]:
    """Restic and borg, where they are installed: name, repository, and a night of each."""
    environment = os.environ | {
        "RESTIC_PASSWORD": "x",
        "BORG_BASE_DIR": str(directory / "borg-home"),
        "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
    }

    def run(*command: str) -> None:
        subprocess.run(command, env=environment, check=True, capture_output=True)

    if shutil.which("restic"):
        version = subprocess.run(["restic", "version"], check=True, capture_output=True, text=True).stdout
        compresses = tuple(map(int, version.split()[1].split(".")[:2])) >= (0, 14)
        first = ("restic", "-r", str(directory / "restic"))
        run(*first, "init", *(("--repository-version", "2") if compresses else ()))
        yield "restic", directory / "restic", lambda source, _: run(*first, "backup", str(source))
    if shutil.which("borg"):
        run("borg", "init", "-e", "none", str(directory / "borg"))
        create = ("borg", "create", "--compression", "zstd,3")
        yield (
            "borg",
            directory / "borg",
            lambda source, night: run(*create, f"{directory / 'borg'}::{night}", str(source)),
        )


def nights(directory: Path) -> None:
    """All nights of the product and of the others; bytes of one replica and seconds of each night."""
    source = directory / "projects"
    projects = [Project(source / f"project{number}", number) for number in range(PROJECTS)]
    with ExitStack() as stack:
        product, others = Product(directory, stack), list(other_stores(directory))
        logical = 0
        for night in range(1, NIGHTS + 1):
            if night > 1:
                for project in projects:
                    project.change()
            logical += size_of(source)
            before = product.received_bytes()
            put_s = timed(product.put, source)
            sent_bytes, freeze_s = product.received_bytes() - before, product.freeze()
            mine = (
                f"{product.stored_bytes() / 1e6:.0f} MB, put {put_s:.1f} s with {sent_bytes / 1e6:.0f} MB, "
                f"freeze {freeze_s:.1f} s"
            )
            theirs = []
            for name, repository, backup in others:
                took_s = timed(backup, source, night)
                theirs.append(f"{name} {size_of(repository) / 1e6:.0f} MB, {took_s:.1f} s")
            show(f"after night {night}, {logical / 1e6:.0f} MB of content", mine, "; ".join(theirs))


def downloads(directory: Path) -> None:
    """Downloads from one node: its content as a file, then as chunks, turn by turn in TURNS rounds."""
    with ExitStack() as stack:
        node = OneNode(directory / "node", stack, {WHOLE_BYTES: 1})
        ((file_uuid, sha256),) = node.stored[WHOLE_BYTES]
        path, cluster = f"/api/v1/files/{file_uuid}", node.cluster
        asyncio.run(set_storage(cluster, "cold"))
        figures: dict[str, list[float]] = defaultdict(list)
        for turn in range(TURNS):
            if turn:
                asyncio.run(run_job(cluster, "thaw"))
            assert node.blob_path(sha256).exists()
            _measure(node, path, "hot", figures)
            took_s = timed(_run_job, cluster, "freeze")
            show("turning cold", f"{WHOLE_BYTES / took_s / 1e6:.0f} MB/s", "with the time of the job")
            assert not node.blob_path(sha256).exists()
            _measure(node, path, "cold", figures)
        for what in ("whole, TLS", "ranges, TLS", "whole, plain", "ranges, plain"):
            hot, cold = (statistics.median(figures[f"{form} {what}"]) for form in ("hot", "cold"))
            show(f"GET, {what}", f"{cold:.0f} MB/s, {cold / hot:.2f} of hot", f"hot {hot:.0f} MB/s")


def _measure(node: OneNode, path: str, form: str, figures: dict[str, list[float]]) -> None:
    headers = {"Authorization": f"Bearer {node.token}"}
    context = ssl.create_default_context(cafile=str(node.cluster.ca))
    connections = {
        "TLS": http.client.HTTPSConnection(LOOPBACK, node.tls_port, context=context),
        "plain": http.client.HTTPConnection(LOOPBACK, node.plain_port),
    }
    for name, connection in connections.items():
        with closing(connection):
            for _ in range(2):  # the first one reads and verifies
                took_s = timed(_get, connection, path, headers, WHOLE_BYTES)
            figures[f"{form} whole, {name}"].append(WHOLE_BYTES / took_s / 1e6)
            took_s = timed(_get_ranges, connection, path, headers)
            figures[f"{form} ranges, {name}"].append(RANGES * RANGE_BYTES / took_s / 1e6)


def _get_ranges(connection: http.client.HTTPConnection, path: str, headers: dict[str, str]) -> None:
    dice = random.Random(1)
    for _ in range(RANGES):
        start = dice.randrange(WHOLE_BYTES - RANGE_BYTES)
        ranged = headers | {"Range": f"bytes={start}-{start + RANGE_BYTES - 1}"}
        _get(connection, path, ranged, RANGE_BYTES)


def _get(connection: http.client.HTTPConnection, path: str, headers: dict[str, str], size_bytes: int) -> None:
    connection.request("GET", path, headers=headers)
    answer, buffer, read_bytes = connection.getresponse(), bytearray(1 << 20), 0
    while count := answer.readinto(buffer):
        read_bytes += count
    if read_bytes != size_bytes:
        raise RuntimeError(f"{answer.status}: {read_bytes} bytes")


def _run_job(cluster: DevelopmentCluster, name: str) -> None:
    asyncio.run(run_job(cluster, name))


async def set_storage(cluster: DevelopmentCluster, storage: Any) -> None:
    """Of the default bucket."""
    async with cluster.client() as client:
        async for bucket in client.buckets.list():
            await client.buckets.update(bucket.bucket_id, storage=storage)


def latencies(directory: Path) -> None:
    """Downloads of 256 KiB while nothing else happens, and while content turns cold beside them."""
    with ExitStack() as stack:
        node = OneNode(directory / "node", stack, {WHOLE_BYTES: 1, SMALL_BYTES: SMALL_FILES})
        asyncio.run(set_storage(node.cluster, "cold"))
        small = [f"/api/v1/files/{file_uuid}" for file_uuid, _ in node.stored[SMALL_BYTES]]
        ((_, whole),) = node.stored[WHOLE_BYTES]
        before = _latencies(node, small, lambda count: count < LATENCIES)
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(asyncio.run, run_job(node.cluster, "freeze"))
            during = _latencies(node, small, lambda _: not job.done())
            job.result()
        if node.blob_path(whole).exists():
            raise RuntimeError("the content stayed hot")
        p99 = [statistics.quantiles(each, n=100)[98] * 1000 for each in (before, during)]
        show(
            "p99 of 256 KiB while content turns cold",
            f"{p99[1]:.1f} ms, {p99[1] / p99[0]:.2f} of",
            f"{p99[0]:.1f} ms, {len(during)} downloads",
        )


def _latencies(node: OneNode, paths: list[str], goes_on: Callable[[int], bool]) -> list[float]:
    headers, taken_s = {"Authorization": f"Bearer {node.token}"}, list[float]()
    context = ssl.create_default_context(cafile=str(node.cluster.ca))
    with closing(http.client.HTTPSConnection(LOOPBACK, node.tls_port, context=context)) as connection:
        while goes_on(len(taken_s)):
            path = paths[len(taken_s) % len(paths)]
            taken_s.append(timed(_get, connection, path, headers, SMALL_BYTES))
    return taken_s


def many_chunks(directory: Path) -> None:
    """Open a store of CHUNKS chunks in a process of its own."""
    with closing(ChunkStore(directory)) as store:
        for first in range(0, CHUNKS, 2000):
            contents = [
                number.to_bytes(8, "little") * 8 for number in range(first, min(first + 2000, CHUNKS))
            ]
            store.put([(hashlib.sha256(content).digest(), content) for content in contents])
    script = (
        "import re, sys, time; from pathlib import Path; from node.storage.blobs import BlobStore;"
        "rss = lambda: int(re.search(r'VmRSS:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]);"
        "before, began = rss(), time.perf_counter();"
        "store = BlobStore(Path(sys.argv[1])); count = store.cold.chunks.totals()[0];"
        "took = time.perf_counter() - began;"
        "print(f'{count} chunks: {took:.2f} s, {(rss() - before) / 1024:.0f} MB'); store.close()"
    )
    done = subprocess.run([sys.executable, "-c", script, str(directory)], check=True, capture_output=True)
    show("opening", done.stdout.decode().strip())


def main() -> None:
    """The command."""
    with tempfile.TemporaryDirectory(prefix="filestore-bench-") as name:
        for part in (nights, downloads, latencies, many_chunks):
            directory = Path(name) / part.__name__
            directory.mkdir()
            part(directory)
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()
