"""A cluster whose members run this version or the one before it, and clients that work while it is rolled."""

import hashlib
import http.client
import json
import random
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from coordinator.machine.execution.change import rules_in_force
from coordinator.storage.config import CoordinatorFiles
from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.cluster.harness import Answer, Cluster
from tests.cluster.previous_release import PreviousRelease

CLIENTS: Final = 4
REQUEST_S: Final = 15.0  # for one attempt
PAUSE_S: Final = 1.0  # before the second, unless the answer says how long
LOCKED_S: Final = 5.0  # from the first on, for what a member of 0.1.0 still does of it
FILES_MIN: Final = 12  # before any is deleted
SIZE_BYTES_MAX: Final = 4 << 20
START_S: Final = 90.0
COMMAND_S: Final = 60.0
DIGEST_S: Final = 0.1
TRY_AGAIN: Final = (423, 429, 502, 503)
BROKEN: Final = (OSError, http.client.HTTPException)


class MixedCluster(Cluster):
    """Made by the release before this one, every member of which runs it at first."""

    def __init__(
        self, directory: Path, previous: PreviousRelease, *, node_options: Sequence[str] = ()
    ) -> None:
        self.previous = previous
        _make_by(previous.program, directory)
        super().__init__(directory, node_options=node_options)
        for member in self.coordinators:  # all of the state is compared within seconds
            config = CoordinatorFiles(self.data(member)).config
            settings = json.loads(config.read_bytes()) | {"digest_s": DIGEST_S}
            config.write_text(json.dumps(settings))
        for member in self.members:
            self._development.programs[member.id] = (str(previous.program),)

    def roll(self, *members: Member, to_previous: bool = False, kill: bool = False) -> None:
        """End them as an operator does, or as a power cut, and start them in another version.

        When this returns, they serve.
        """
        end = self.kill if kill else self.terminate
        end(*members)
        for member in members:
            self.start_as(member, to_previous=to_previous)
        self.wait_healthy(START_S)

    def start_as(self, member: Member, *, to_previous: bool = False) -> None:
        """Start it, not ready yet, in one of the two versions."""
        programs = self._development.programs
        if to_previous:
            programs[member.id] = (str(self.previous.program),)
        else:
            programs.pop(member.id, None)
        self.restart(member)

    def by_both_commands(self, *arguments: str) -> list[subprocess.CompletedProcess[bytes]]:
        """The same command in both versions, the one before this one first."""
        return [self.by_previous(*arguments), self.filestore(*arguments)]

    def by_previous(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
        """A command of the release before this one."""
        return subprocess.run(
            [self.previous.program, *arguments],
            env=self.command_environment(**environment),
            capture_output=True,
            timeout=COMMAND_S,
            check=False,
        )

    def differing(self) -> list[str]:
        """What coordinators have logged of states that differ."""
        named = {member.id for member in self.coordinators}
        return [
            line
            for name, log in self.logs().items()
            if name in named
            for line in log.splitlines()
            if "differ" in line or "diverge" in line
        ]

    def rules(self) -> set[int]:
        """The rules in force, by the state of each coordinator."""
        found = set()
        for member in self.coordinators:
            with closing(sqlite3.connect(CoordinatorFiles(self.data(member)).state)) as db:
                found.add(rules_in_force(db))
        return found


def _make_by(program: Path, directory: Path) -> None:
    """`filestore dev` of a version makes a cluster, and ends."""
    log = directory.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, "dev", "--data", directory],
            cwd=program.parents[2],  # its children take what lies there before what is installed
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        ready = directory / "cluster.json"
        wait_until(
            lambda: ready.exists() or process.poll() is not None, what="a cluster is made", timeout_s=START_S
        )
        assert process.poll() is None, log.read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_S)


class Load:
    """Clients that upload, read, change and delete until the end, each request tried twice at most.

    Only one that was cut off, and still writes an upload, is waited for longer.
    """

    def __init__(self, cluster: Cluster, seed: int = 1) -> None:
        self.cluster = cluster
        self.token = cluster.admin_token
        self.over = threading.Event()
        self.faults: list[str] = []
        self.requests = self.retries = self.refused = 0
        self.longest_s, self.longest = 0.0, ""
        self.stored: dict[str, str] = {}  # sha256 by file_uuid
        self._lock = threading.Lock()
        self._seed = seed

    @contextmanager
    def running(self) -> Iterator[None]:
        """While the block runs; raises what a client has raised."""
        threads = [threading.Thread(target=self._run, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.over.set()
            for thread in threads:
                thread.join()

    def told(self) -> str:
        return (
            f"{self.requests} requests, {self.refused} met a node that was down and asked the next,"
            f" {self.retries} tried again, {len(self.faults)} failed then;"
            f" {len(self.stored)} files; the longest wait {self.longest_s:.2f} s ({self.longest})"
        )

    def check_contents(self) -> None:
        """Every file that is stored comes whole out of every node."""
        for node in self.cluster.nodes:
            for file_uuid, sha256 in self.stored.items():
                answer = self.cluster.get(f"/files/{file_uuid}", node=node)
                assert answer.status == 200, (node.id, file_uuid, answer.body)
                assert hashlib.sha256(answer.body).hexdigest() == sha256

    def _run(self, number: int) -> None:
        dice = random.Random(f"{self._seed}/{number}")
        works = [self._store] * 3 + [self._store_in_pieces] + [self._read] * 4 + [self._change] * 2
        works += [self._list, self._delete]
        while not self.over.is_set():
            try:
                dice.choice(works)(dice)
            except (AssertionError, *BROKEN) as error:
                self._fault(f"{type(error).__name__}: {error}")

    def _fault(self, text: str) -> None:
        with self._lock:
            self.faults.append(text)
        print(f"FAULT {text}", flush=True)

    def ask(
        self, dice: random.Random, method: str, path: str, good: tuple[int, ...], **options: Any
    ) -> Answer:
        """An answer with one of these codes, at the second attempt at the latest, which asks another node.

        A node that takes no connection is no attempt: a client that knows several asks the next at once, as
        it does where a name has several addresses.
        """
        nodes = dice.sample(self.cluster.nodes, len(self.cluster.nodes))
        began_s = time.monotonic()
        first, answer, why = self._attempt(nodes, method, path, options)
        is_tried_again = answer is None or answer.status in TRY_AGAIN
        if is_tried_again:
            told_s = float(answer.headers.get("retry-after", PAUSE_S)) if answer else PAUSE_S
            time.sleep(max(told_s, PAUSE_S))
            is_cut, others = answer is None, [node for node in nodes if node is not first]
            second, answer, again = self._attempt(others, method, path, options)
            # until 0.3.0: the holder in 0.1.0 does not learn that a node, or a worker, which passed a request
            # on to it has lost the client. It refuses the next request rather than let it wait for the end.
            while is_cut and answer and answer.status == 423 and time.monotonic() < began_s + LOCKED_S:
                time.sleep(PAUSE_S)
                second, answer, again = self._attempt(others, method, path, options)
            why = f"{first.id}: {why}; {second.id}: {again}"
        took_s = time.monotonic() - began_s
        with self._lock:
            self.requests += 1
            self.retries += is_tried_again
            if took_s > self.longest_s:
                self.longest_s, self.longest = took_s, f"{method} {path.split('?')[0]}: {why}"
        # What the first attempt did, its answer being lost, is what the second finds.
        if answer is not None and (answer.status in good or (is_tried_again and answer.status in (404, 409))):
            return answer
        raise AssertionError(f"{method} {path} failed: {why}")

    def _attempt(
        self, nodes: Sequence[Member], method: str, path: str, options: dict[str, Any]
    ) -> tuple[Member, Answer | None, str]:
        """Of the first of these nodes that takes a connection: which that is, its answer, and why not."""
        for node in nodes:
            try:
                answer = self.cluster.request(
                    method, path, node=node, token=self.token, timeout_s=REQUEST_S, **options
                )
            except ConnectionRefusedError:
                with self._lock:
                    self.refused += 1
                continue
            except BROKEN as error:
                return node, None, repr(error)
            why = f"{answer.status} {answer.body[:200]!r}" if answer.status >= 400 else str(answer.status)
            return node, answer, why
        return nodes[-1], None, "none of them takes a connection"

    def _created(self, dice: random.Random, size: int) -> str:
        fields = {"filename": f"{dice.random()}.gns3p", "project_id": "lab", "size_bytes": size}
        return str(self.ask(dice, "POST", "/project-files", (201,), body=fields).json["file_uuid"])

    def _store(self, dice: random.Random) -> None:
        content = dice.randbytes(int(1024 * (SIZE_BYTES_MAX / 1024) ** dice.random()))
        file_uuid = self._created(dice, len(content))
        self.ask(dice, "PUT", f"/files/{file_uuid}/content", (200,), content=content)
        self._is_stored(dice, file_uuid, content)

    def _store_in_pieces(self, dice: random.Random) -> None:
        """Each piece at any node, by tus."""
        content = dice.randbytes(dice.randint(1 << 16, 1 << 20))
        file_uuid = self._created(dice, len(content))
        cuts = sorted({0, len(content), *(dice.randrange(len(content)) for _ in range(3))})
        for start, stop in pairwise(cuts):
            self._piece(dice, file_uuid, content, start, stop)
        self._is_stored(dice, file_uuid, content)

    def _piece(self, dice: random.Random, file_uuid: str, content: bytes, start: int, stop: int) -> None:
        path, tus = f"/files/{file_uuid}/content", {"Tus-Resumable": "1.0.0"}
        while start < stop:
            headers = tus | {"Upload-Offset": str(start), "Content-Type": "application/offset+octet-stream"}
            answer = self.ask(dice, "PATCH", path, (204,), content=content[start:stop], headers=headers)
            if answer.status == 204:
                return
            asked = self.ask(dice, "HEAD", path, (200, 204), headers=tus)
            start = int(asked.headers["upload-offset"])

    def _is_stored(self, dice: random.Random, file_uuid: str, content: bytes) -> None:
        record = self.ask(dice, "GET", f"/project-files/{file_uuid}", (200,)).json
        assert record["status"] == "available", record
        with self._lock:
            self.stored[file_uuid] = hashlib.sha256(content).hexdigest()

    def _chosen(self, dice: random.Random) -> tuple[str, str] | None:
        with self._lock:
            return dice.choice(list(self.stored.items())) if self.stored else None

    def _read(self, dice: random.Random) -> None:
        if (chosen := self._chosen(dice)) is None:
            return
        answer = self.ask(dice, "GET", f"/files/{chosen[0]}", (200, 404))
        if answer.status == 200:
            assert hashlib.sha256(answer.body).hexdigest() == chosen[1], f"{chosen[0]}: other bytes"
        else:
            assert chosen[0] not in self.stored, f"{chosen[0]}: {answer.body!r}"

    def _change(self, dice: random.Random) -> None:
        if (chosen := self._chosen(dice)) is None:
            return
        body = {"project_name": f"p{dice.randrange(100)}"}
        answer = self.ask(dice, "PATCH", f"/project-files/{chosen[0]}", (200, 404), body=body)
        if answer.status == 404:
            assert chosen[0] not in self.stored, f"{chosen[0]}: {answer.body!r}"

    def _list(self, dice: random.Random) -> None:
        self.ask(dice, "GET", "/project-files?limit=20&status=available", (200,))

    def _delete(self, dice: random.Random) -> None:
        with self._lock:
            if len(self.stored) < FILES_MIN:
                return
            file_uuid = dice.choice(list(self.stored))
            del self.stored[file_uuid]
        self.ask(dice, "DELETE", f"/files/{file_uuid}", (200,))
