"""Maintenance under load: members are restarted, nodes drained and put back, and workers die, while clients
store, read and delete.

    ROLLING_S=300 ROLLING_SEED=7 pytest -m long tests/cluster/test_rolling.py -s --timeout 1800

is the long form.
"""

import json
import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ca.errors import Unavailable
from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.cluster.harness import Answer, Cluster
from tests.cluster.upload_storm import Storm, blobs_lacking
from tests.cluster.worker_processes import pids_of
from tests.file_ledger import GONE, File, Ledger

ROLLING_S = float(os.environ.get("ROLLING_S", "30"))
SEED = int(os.environ.get("ROLLING_SEED", "1"))
CLIENTS = 6
PATIENCE_S = 30.0  # of a client: who drains ends what is under way first
STORED_S = 60.0  # for one upload, whatever is restarted
HEALED_S = 90.0
FILES_MIN = 20  # before any is deleted
SOCKETS_MORE_MAX = 40  # connections that are kept come and go
SOCKETS_BACK_S = 60.0

pytestmark = [pytest.mark.long, pytest.mark.timeout(ROLLING_S + 300)]


class Client:
    """Stores, reads and deletes, each at any node, in a thread."""

    def __init__(self, storm: Storm, ledger: Ledger, number: int) -> None:
        self.storm, self.ledger, self.number = storm, ledger, number
        self.dice = random.Random(f"{storm.seed}/{number}")

    def run(self) -> None:
        """Until the storm is over."""
        while not self.storm.is_over.is_set():
            try:
                self.dice.choice([self.store] * 4 + [self.read] * 5 + [self.delete])()
            except Exception as error:
                self.storm.fault(f"client {self.number}: {error!r}")
                raise

    def ask(self, method: str, path: str, body: bytes | None = None) -> Answer | None:
        node = self.dice.choice(self.storm.cluster.nodes)
        kind = "application/json" if method == "POST" else "application/octet-stream"
        answer = self.storm.ask(method, f"/api/v1{path}", node, body, timeout_s=PATIENCE_S, Content_Type=kind)
        if answer is None or answer.status in (409, 423, 503):
            time.sleep(0.1)
        return answer

    def store(self) -> None:
        content = self.ledger.new_content()
        fields = {"filename": "rolling", "project_id": "lab", "size_bytes": content.size_bytes}
        created = self.ask("POST", "/project-files", json.dumps(fields).encode())
        if created is None or created.status != 201:
            return
        file_uuid = str(created.json["file_uuid"])
        until_s = time.monotonic() + STORED_S
        while time.monotonic() < until_s:
            answer = self.ask("PUT", f"/files/{file_uuid}/content", content.bytes())
            if answer is not None and (answer.status == 200 or self.is_stored(file_uuid, answer)):
                self.ledger.add(File(file_uuid, content, is_stored=True))
                return
            if answer is not None and answer.status not in (409, 423, 503):
                self.storm.fault(f"PUT of {file_uuid}: {answer.status} {answer.body[:200]!r}")
                return
        self.storm.fault(f"{file_uuid} could not be stored in {STORED_S:.0f} s")

    def is_stored(self, file_uuid: str, answer: Answer) -> bool:
        """Whether an earlier request, whose answer was lost, has stored it."""
        if answer.status != 409:
            return False
        asked = self.ask("GET", f"/files/{file_uuid}/status")
        return asked is not None and asked.status == 200 and asked.json["status"] == "available"

    def read(self) -> None:
        if not (stored := self.ledger.stored()):
            return
        file = self.dice.choice(stored)
        answer = self.ask("GET", f"/files/{file.file_uuid}")
        if answer is None or answer.status == 503:
            return
        if wrong := file.wrong_with(answer.status, answer.body, was_deleted=False):
            self.storm.fault(f"{file.file_uuid}: {wrong}")
        elif answer.status not in GONE | {200}:
            self.storm.fault(f"{file.file_uuid}: {answer.status} {answer.body[:200]!r}")

    def delete(self) -> None:
        if len(stored := self.ledger.stored()) < FILES_MIN:
            return
        file = self.dice.choice(stored)
        file.is_deletion_asked = True
        answer = self.ask("DELETE", f"/files/{file.file_uuid}")
        if answer is None or answer.status != 200:
            return
        asked = self.ask("GET", f"/files/{file.file_uuid}")
        if asked is not None and asked.status not in (404, 503):
            self.storm.fault(f"{file.file_uuid}: deleted, and then {asked.status}")


def maintain(storm: Storm) -> None:
    """What an operator does, one thing after another; for the main thread, as a process ends with who
    started it.
    """
    cluster, dice = storm.cluster, random.Random(f"{storm.seed}/maintain")
    until_s = time.monotonic() + ROLLING_S
    while time.monotonic() < until_s:
        chance = dice.random()
        if chance < 0.6:
            member = dice.choice(cluster.members)
            cluster.terminate(member)
            cluster.restart(member)
            storm.count(f"restart of a {member.role}")
        elif chance < 0.8:
            drain(storm, dice)
        else:
            workers = pids_of(cluster, dice.choice(cluster.nodes))
            if workers.keys() > {0}:  # the others end with the first, and are started by it
                os.kill(workers[max(workers)], signal.SIGKILL)
                storm.count("worker killed")
        time.sleep(dice.uniform(0.3, 3))


def drain(storm: Storm, dice: random.Random) -> None:
    """And put back, however far it was."""
    path = f"/api/v1/cluster/nodes/{dice.choice(storm.cluster.nodes).id}/drain"
    answer = storm.ask("POST", path, dice.choice(storm.cluster.nodes), timeout_s=PATIENCE_S)
    time.sleep(dice.uniform(0.2, 5))
    until_s = time.monotonic() + STORED_S
    while time.monotonic() < until_s:
        answer = storm.ask("DELETE", path, dice.choice(storm.cluster.nodes), timeout_s=PATIENCE_S)
        if answer is not None and answer.status == 200:
            return
    storm.fault("a drain could not be ended")


def sockets(cluster: Cluster, member: Member) -> int:
    """Of all its processes; files that are kept open have a bound of their own."""
    found = 0
    for pid in pids_of(cluster, member).values():
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found += str(entry.readlink()).startswith("socket:")
    return found


def test_nothing_is_lost_while_members_come_and_go_in_order(tmp_path: Path) -> None:
    options = ("--workers", "2")
    with Cluster(
        tmp_path / "cluster", node_count=4, replicas=2, write_quorum=2, node_options=options
    ) as cluster:
        before = {member.id: sockets(cluster, member) for member in cluster.members}
        storm, ledger = Storm(cluster, SEED), Ledger(SEED)
        threads = [threading.Thread(target=Client(storm, ledger, number).run) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            maintain(storm)
        finally:
            storm.is_over.set()
            for thread in threads:
                thread.join()
        cluster.wait_healthy()
        print(f"{len(ledger.stored())} files; {dict(sorted(storm.counts.items()))}")
        wait_until(lambda: blobs_lacking(cluster) == 0, what="every replica", timeout_s=HEALED_S)
        for node in cluster.nodes:
            for file in ledger.stored():
                answer = cluster.get(f"/files/{file.file_uuid}", node=node)
                if answer.status != 200 or file.wrong_with(200, answer.body, was_deleted=False):
                    storm.fault(f"{file.file_uuid} at {node.id}: {answer.status}")
        assert not storm.faults, "\n".join(storm.faults)
        assert len(ledger.stored()) >= FILES_MIN

        def grown() -> dict[str, int]:
            return {member.id: sockets(cluster, member) - before[member.id] for member in cluster.members}

        with suppress(Unavailable):  # pools keep what the reading took for a while; what leaks never goes
            few = "connections that are given back"
            wait_until(lambda: max(grown().values()) <= SOCKETS_MORE_MAX, what=few, timeout_s=SOCKETS_BACK_S)
        found = grown()
        assert max(found.values()) <= SOCKETS_MORE_MAX, found
