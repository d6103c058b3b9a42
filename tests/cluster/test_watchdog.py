"""The service manager hears nothing of a process that answers, and whose disk threads take no jobs."""

import ssl
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.processes import wait_until
from node.diskio.executor import DISK_THREADS
from tests.cluster.disk_shim import DiskRules, disk_rules
from tests.cluster.services import WAIT_S, WATCHDOG_S, Place, Service, run, service

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

QUIET_S = 1.5 * WATCHDOG_S  # without a word the service manager would have ended it
ANSWER_S = 2.0
CLIENT_S = 60
SIGN = "WATCHDOG=1"


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DiskRules]:
    (tmp_path / "shim").mkdir()
    made = disk_rules(tmp_path / "shim", monkeypatch)
    yield made
    made.clear()


@contextmanager
def running(place: Place, name: str, role: str, data: Path, plain: int) -> Iterator[Service]:
    """A member that has said that it is ready, with a plain port."""
    options = ("--data", str(data), "--http", f"127.0.0.1:{plain}")
    with service(place.directory, name, role, "run", *options) as started:
        started.until("READY=1")
        yield started


@contextmanager
def coordinating(place: Place) -> Iterator[Service]:
    place.make_coordinator()
    with running(place, "c1", "coordinator", place.coordinator, place.plain) as started:
        yield started


@contextmanager
def keeping(place: Place) -> Iterator[Service]:
    place.make_node()
    with running(place, "n1", "node", place.node, place.node_plain) as started:
        started.until_status("Serves")
        yield started


def answers(port: int) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=ANSWER_S) as answer:
        return bool(answer.status == 200)


def until_silent(process: Service, port: int) -> None:
    """Wait until nothing was told for a while, in which requests were answered all the time."""
    told, since_s = -1, time.monotonic()

    def is_silent() -> bool:
        nonlocal told, since_s
        assert answers(port)
        if told != (told := process.heard.count(SIGN)):
            since_s = time.monotonic()
        return time.monotonic() - since_s >= QUIET_S

    wait_until(is_silent, what="silence", timeout_s=WAIT_S)


def until_heard(process: Service) -> None:
    process.until(SIGN, times=process.heard.count(SIGN) + 3)


def test_coordinator_whose_log_takes_nothing_gives_no_sign_of_life(tmp_path: Path, rules: DiskRules) -> None:
    place = Place(tmp_path)
    with coordinating(place) as coordinator, ThreadPoolExecutor(1) as client:
        until_heard(coordinator)
        with rules.hanging(place.coordinator / "log", "S"):
            making = client.submit(run, "bucket", "create", "b1", "--url", place.url, **place.access)
            until_silent(coordinator, place.plain)
        until_heard(coordinator)
        making.exception()  # it may have ended before the disk went on


def test_node_whose_disk_threads_all_hang_gives_no_sign_of_life(tmp_path: Path, rules: DiskRules) -> None:
    place = Place(tmp_path)
    files = tmp_path / "files"
    files.mkdir()
    for number in range(DISK_THREADS + 4):
        (files / f"f{number}").write_bytes(number.to_bytes(4, "little") * 1000)
    many = ThreadPoolExecutor(DISK_THREADS + 4)
    with coordinating(place), keeping(place) as node, many:
        told = run("put", "-r", str(files), "--url", place.node_url, **place.access)
        file_uuids = [line.split()[0] for line in told.splitlines()]
        until_heard(node)
        with rules.hanging(place.node / "packs", "G"):
            reading = [many.submit(got, place, file_uuid) for file_uuid in file_uuids]
            until_silent(node, place.node_plain)
        until_heard(node)
        for each in reading:
            each.exception()  # it may have been broken off


def got(place: Place, file_uuid: str) -> bytes:
    """Its content, from the node."""
    context = ssl.create_default_context(cafile=place.access["FILESTORE_CA"])
    token = Path(place.access["FILESTORE_TOKEN_FILE"]).read_text().strip()
    url = f"{place.node_url}/api/v1/files/{file_uuid}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=CLIENT_S, context=context) as answer:
        return bytes(answer.read())
