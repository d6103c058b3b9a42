"""Records that nodes keep: hot files need no coordinator, and no read is stale whatever dies meanwhile."""

import http.client
import itertools
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.cluster.harness import API, Cluster
from tests.history import Operation, check
from tests.history_records import Outcome

MAY, MAY_NOT = "may read", "may not"
REFUSALS = {401, 403, 404, 429}  # 429: too many dead tokens from one address
REGISTERS_EACH = 8  # of deleted files, withdrawn permissions, revoked users
READERS_EACH = 2  # of one node
PAUSE_S = 3.0  # longer than a lease
CHANGE_PAUSE_S = 0.1
SOON_S = 30.0


@dataclass
class Register:
    """Whether somebody may read a file: true at first, until `end` is acknowledged."""

    name: str
    file_uuid: str
    token: str
    method: str
    path: str

    def end(self, cluster: Cluster, node: Member) -> int:
        return cluster.request(self.method, self.path, node=node).status


class Readers:
    """Threads that ask nodes for files until they are stopped; what they found, as a history."""

    def __init__(self, cluster: Cluster, registers: list[Register]) -> None:
        self._cluster = cluster
        self._registers = registers
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self.history: list[Operation] = []

    def run(self, node: Member, name: str) -> None:
        dice = random.Random(name)
        connection: http.client.HTTPSConnection | None = None
        while not self._is_over.is_set():
            connection = connection or self._connection(node)
            register = dice.choice(self._registers)
            called_at = time.monotonic()
            try:
                status = self._ask(connection, register)
            except (OSError, http.client.HTTPException):
                connection.close()
                connection = None
                continue
            if status == 200 or status in REFUSALS:
                self.note(name, register, "read", MAY if status == 200 else MAY_NOT, called_at, "ok")
        if connection is not None:
            connection.close()

    def stop(self) -> None:
        self._is_over.set()

    def note(
        self, client: str, register: Register, kind: str, value: str, called_at: float, outcome: Outcome
    ) -> None:
        operation = Operation(
            client=client,
            key=register.name,
            kind="read" if kind == "read" else "write",
            value=value,
            called_at=called_at,
            returned_at=time.monotonic() if outcome == "ok" else None,
            outcome=outcome,
        )
        with self._lock:
            self.history.append(operation)

    def end(self, register: Register, node: Member) -> None:
        """One change; that it was not acknowledged says nothing."""
        called_at = time.monotonic()
        try:
            outcome: Outcome = "ok" if register.end(self._cluster, node) == 200 else "unknown"
        except (OSError, http.client.HTTPException):
            outcome = "unknown"
        self.note(f"writer at {node.id}", register, "write", MAY_NOT, called_at, outcome)

    def _connection(self, node: Member) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(
            "127.0.0.1", node.api_port, timeout=SOON_S, context=self._cluster.context
        )

    @staticmethod
    def _ask(connection: http.client.HTTPSConnection, register: Register) -> int:
        headers = {"Authorization": f"Bearer {register.token}"}
        connection.request("GET", f"{API}/files/{register.file_uuid}", headers=headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status


def deleted(cluster: Cluster, number: int) -> Register:
    file_uuid = cluster.store(os.urandom(2000), f"deleted-{number}.gns3p")
    return Register(
        f"deleted {number}", file_uuid, cluster.admin_token, "DELETE", f"/project-files/{file_uuid}"
    )


def withdrawn(cluster: Cluster, number: int) -> Register:
    file_uuid = cluster.store(os.urandom(2000), f"withdrawn-{number}.gns3p")
    token = cluster.user_token(f"withdrawn-{number}")
    path = granted(cluster, file_uuid, f"withdrawn-{number}")
    return Register(f"withdrawn {number}", file_uuid, token, "DELETE", path)


def revoked(cluster: Cluster, number: int) -> Register:
    file_uuid = cluster.store(os.urandom(2000), f"revoked-{number}.gns3p")
    token = cluster.user_token(f"revoked-{number}")
    granted(cluster, file_uuid, f"revoked-{number}")
    return Register(f"revoked {number}", file_uuid, token, "POST", f"/auth/revoke?user_id=revoked-{number}")


def granted(cluster: Cluster, file_uuid: str, user_id: str) -> str:
    """The path of a new permission to read."""
    body = {"permission": "read", "principal_type": "user", "principal_id": user_id}
    answer = cluster.post(f"/files/{file_uuid}/permissions", body)
    assert answer.status == 201, answer.body
    return f"/files/{file_uuid}/permissions/{answer.json['id']}"


@contextmanager
def stopped(cluster: Cluster, member: Member) -> Iterator[None]:
    os.kill(cluster.pid(member), signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(cluster.pid(member), signal.SIGCONT)


@contextmanager
def reading(cluster: Cluster, registers: list[Register]) -> Iterator[Readers]:
    readers = Readers(cluster, registers)
    threads = [
        threading.Thread(target=readers.run, args=(node, f"{node.id}-{number}"))
        for node in cluster.nodes
        for number in range(READERS_EACH)
    ]
    for thread in threads:
        thread.start()
    try:
        yield readers
    finally:
        readers.stop()
        for thread in threads:
            thread.join(2 * SOON_S)


def lookups(cluster: Cluster, node: Member) -> dict[str, float]:
    """How many records the node looked up for downloads, by source."""
    text = cluster.get("/metrics", node=node).body.decode()
    found = re.findall(r'^filestore_record_reads_total\{source="(\w+)"\} (\S+)$', text, re.MULTILINE)
    return {source: float(count) for source, count in found}


def test_hot_file_is_answered_without_a_coordinator(cluster: Cluster) -> None:
    file_uuid = cluster.store(b"hot", "hot.gns3p")
    node = cluster.nodes[1]

    def all_from_memory() -> bool:
        before = lookups(cluster, node)
        for _ in range(20):
            assert cluster.get(f"/files/{file_uuid}", node=node).body == b"hot"
        after = lookups(cluster, node)
        return after["kept"] - before["kept"] == 20 and after["asked"] == before["asked"]

    wait_until(all_from_memory, what="twenty downloads without a question", timeout_s=SOON_S)


def test_file_with_a_retention_period_is_asked_for_each_time(cluster: Cluster) -> None:
    file_uuid = cluster.store(b"kept for a while", "retained.gns3p", retention_period=1000)
    node = cluster.nodes[1]
    before = lookups(cluster, node)

    for _ in range(5):
        assert cluster.get(f"/files/{file_uuid}", node=node).status == 200

    assert lookups(cluster, node)["asked"] - before["asked"] == 5


@pytest.mark.long
def test_no_read_is_stale_while_the_leader_dies_and_a_node_is_paused(own_cluster: Cluster) -> None:
    kinds: tuple[Callable[[Cluster, int], Register], ...] = (deleted, withdrawn, revoked)
    registers = [kind(own_cluster, number) for number in range(REGISTERS_EACH) for kind in kinds]
    first, second, victim = own_cluster.nodes
    leader = own_cluster.leader()
    writers = itertools.cycle((first, second))

    with reading(own_cluster, registers) as readers:
        waiting = iter(registers)

        def change(count: int) -> None:
            for register in itertools.islice(waiting, count):
                readers.end(register, next(writers))
                time.sleep(CHANGE_PAUSE_S)

        change(6)
        own_cluster.kill(leader)
        change(6)
        with stopped(own_cluster, victim):
            started_at = time.monotonic()
            change(6)
            time.sleep(max(0.0, started_at + PAUSE_S - time.monotonic()))
        change(6)
        wait_until(
            lambda: own_cluster.get("/readyz", node=victim).status == 200, what="it is back", timeout_s=SOON_S
        )

    violation = check(readers.history, initial=MAY)
    assert violation is None, str(violation)
    reads = sum(operation.kind == "read" for operation in readers.history)
    acknowledged = sum(o.kind == "write" and o.outcome == "ok" for o in readers.history)
    kept = {node.id: lookups(own_cluster, node)["kept"] for node in own_cluster.nodes}
    print(f"{reads} reads, {acknowledged} changes acknowledged, from memory: {kept}")
    assert acknowledged >= len(registers) // 2
    assert min(kept.values()) > 0
