"""What befalls a cluster in a storm, and what was found wrong: members that die, freeze and stutter, and a
user whose permission comes and goes.
"""

import http.client
import json
import os
import random
import signal
import sqlite3
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from deploy.dev_cluster import Member
from tests.cluster.harness import STRANGERS, Answer, Cluster
from tests.cluster.storm_contents import Upload
from tests.cluster.upload_steps import TUS

PIECE_BYTES: Final = 64 << 10
PATIENCE_S: Final = 6.0  # of a client, with a request that does not move
FROZEN_S: Final = (2.0, 10.0)
DEAD_S: Final = (0.1, 2.0)
STUTTER_SHARE: Final = 0.75
AWAKE_S: Final = (0.005, 0.15)
WAYS: Final = ("freeze", "stutter", "kill")


class Storm:
    """The cluster, what befalls its nodes, and what was found wrong."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster, self.seed = cluster, seed
        self.faults: list[str] = []
        self.counts: dict[str, int] = {}
        self.uploads: list[Upload] = []
        self.is_over = threading.Event()
        self.began_s = time.monotonic()
        self.struck: dict[str, tuple[Member, str, float]] = {}  # frozen or dead, until when
        self._lock = threading.Lock()
        self._dice = random.Random(f"{seed}/stutter")
        self._bearer = cluster.admin_token
        self.context: ssl.SSLContext = cluster.context
        self.writer = Writer(self)

    def fault(self, text: str) -> None:
        at_s = time.monotonic() - self.began_s
        with self._lock:
            self.faults.append(f"{at_s:.1f} s: {text}")
        print(f"FAULT {at_s:.1f} s: {text}", flush=True)

    def count(self, name: str) -> None:
        with self._lock:
            self.counts[name] = self.counts.get(name, 0) + 1

    def strike(self, member: Member, how: str, lasts_s: float, *, at_once_max: int = 1) -> bool:
        """Freeze or kill a member for a while, unless too many of its role are struck already."""
        with self._lock:
            others = [one for one, _, _ in self.struck.values() if one.role == member.role]
            if self.is_over.is_set() or member.id in self.struck or len(others) >= at_once_max:
                return False
            self.struck[member.id] = (member, how, time.monotonic() + lasts_s)
            if how == "kill":
                self.cluster.kill(member)
            else:
                os.kill(self.cluster.pid(member), signal.SIGSTOP)
        self.count(f"{how} {member.role}")
        return True

    def mend(self, *, all_of_them: bool = False) -> None:
        """Thaw and restart those whose time is over. For the main thread: a process ends with who started it.

        One that stutters is frozen again a moment later, in the middle of what it woke up to.
        """
        with self._lock:
            due = [each for each in self.struck.values() if all_of_them or time.monotonic() >= each[2]]
        for member, how, _ in due:
            if how == "kill":
                self.cluster.restart(member)
            else:
                os.kill(self.cluster.pid(member), signal.SIGCONT)
            if how == "stutter" and not all_of_them and self._dice.random() < STUTTER_SHARE:
                time.sleep(self._dice.uniform(*AWAKE_S))
                os.kill(self.cluster.pid(member), signal.SIGSTOP)
                with self._lock:
                    self.struck[member.id] = (member, how, time.monotonic() + self._dice.uniform(0.2, 4))
                continue
            with self._lock:
                del self.struck[member.id]

    def rage(self, lasts_s: float) -> None:
        """Let it last, then calm: nothing more is struck."""
        until_s = time.monotonic() + lasts_s
        while time.monotonic() < until_s:
            self.mend()
            time.sleep(0.05)
        self.is_over.set()

    def calm(self) -> None:
        """Everybody is back."""
        self.mend(all_of_them=True)
        self.cluster.wait_healthy()

    def ask(
        self,
        method: str,
        path: str,
        node: Member,
        body: bytes | None = None,
        token: str = "",
        *,
        timeout_s: float = PATIENCE_S,
        cut: int | None = None,
        when_sent: Callable[[], None] | None = None,
        **headers: str,
    ) -> Answer | None:
        """The answer, None when there was none. `cut`: so many bytes of the body are sent, no more."""
        with self._lock:  # who is refused has an address of its own: those are counted
            source = (next(STRANGERS), 0) if token else None
        connection = http.client.HTTPSConnection(
            "127.0.0.1", node.api_port, timeout=timeout_s, context=self.context, source_address=source
        )
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.putrequest(method, path)
            sent = TUS | {"Authorization": f"Bearer {token or self._bearer}"} | named
            if body is not None:
                sent["Content-Length"] = str(len(body))
            for name, value in sent.items():
                connection.putheader(name, value)
            connection.endheaders()
            stop = len(body or b"") if cut is None else cut
            for start in range(0, stop, PIECE_BYTES):
                connection.send((body or b"")[start : min(start + PIECE_BYTES, stop)])
            if when_sent is not None:
                when_sent()
            if cut is not None and body is not None and cut < len(body):
                return None
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            answer = Answer(response.status, found, response.read())
        except (OSError, http.client.HTTPException):
            self.count(f"{method} -")
            return None
        finally:
            connection.close()
        self.count(f"{method} {answer.status}")
        if answer.status >= 500 and answer.status != 503:
            self.fault(f"{method} {path} at {node.id}: {answer.status} {answer.body[:300]!r}")
        return answer

    def holder(self, upload: Upload) -> Member:
        """Who holds it, by the last takeover that a node has told of."""
        taken = []
        for member in self.cluster.nodes:
            path = self.cluster.directory / "logs" / f"{member.id}.log"
            for line in path.read_text().splitlines():
                if upload.file_uuid in line and '"took over an upload"' in line:
                    told = json.loads(line)
                    taken.append((told["time"], told["peer"]))
        name = max(taken)[1] if taken else upload.first_holder.id
        return next(node for node in self.cluster.nodes if node.id == name)


def blobs_lacking(cluster: Cluster) -> int:
    """How many blobs have fewer replicas than they should, by the log."""
    state = cluster.data(cluster.coordinators[0]) / "state.sqlite"
    with sqlite3.connect(f"file:{state}?mode=ro", uri=True) as db:
        return int(db.execute("SELECT COUNT(*) FROM blobs WHERE missing > 0").fetchone()[0])


@dataclass(frozen=True)
class Standing:
    """What the writer may, as far as it was told; `number` tells changes apart."""

    number: int
    may: bool | None = None  # None: it is being changed, or nobody knows
    token: str = ""


class Writer:
    """A user who may write the uploads of one bucket through a group, and sometimes may not."""

    def __init__(self, storm: Storm) -> None:
        self.storm, cluster = storm, storm.cluster
        answer = cluster.post("/buckets", {"name": "stormy"})
        assert answer.status == 201, answer.body
        self.bucket_id = str(answer.json["bucket_id"])
        self.dice = random.Random(f"{storm.seed}/writer")
        self.standing = Standing(0, None, cluster.user_token("writer"))
        self._grant = ""
        self.restore()

    def run(self) -> None:
        """Withdrawn and restored, in several ways."""
        while not self.storm.is_over.wait(self.dice.uniform(0.5, 3)):
            self.withdraw()
            self.storm.is_over.wait(self.dice.uniform(0.2, 2))
            self.restore()

    def withdraw(self) -> None:
        self._know(None)
        way = self.dice.randrange(4)
        if way == 0:
            done = self._ask("DELETE", f"/buckets/{self.bucket_id}/permissions/{self._grant}", None)
        elif way == 1:
            done = self._ask("PUT", "/auth/users/writer", {"groups": []})
        elif way == 2:
            done = self._ask("DELETE", "/auth/users/writer", None)
        else:
            done = self._ask("POST", "/auth/revoke", {"user_id": "writer"})
        if done is not None and done.status == 200:
            self._know(False)

    def restore(self) -> None:
        """Until it is known that the writer may."""
        self._know(None)
        grant = {"principal_type": "group", "principal_id": "writers", "permission": "write"}
        while True:
            minted = self._ask("POST", "/auth/users/writer/token", {"groups": ["writers"]})
            granted = self._ask("POST", f"/buckets/{self.bucket_id}/permissions", grant)
            if minted is not None and granted is not None and (minted.status, granted.status) == (200, 201):
                self._grant = str(granted.json["id"])
                self._know(True, self.storm.cluster.remember(str(minted.json["token"])))
                return
            time.sleep(0.2)

    def judge(self, before: Standing, answer: Answer | None, what: str) -> Answer | None:
        """The answer, None where it only tells what the writer may."""
        if answer is None:
            return None
        may = before.may if before.number == self.standing.number else None
        if answer.status in (401, 403):
            if may:
                self.storm.fault(f"the writer may, and {what} is answered with {answer.status}")
            time.sleep(0.1)
            return None
        if may is False and answer.status < 300:
            self.storm.fault(f"the writer may not, and {what} is answered with {answer.status}")
        return answer

    def _know(self, may: bool | None, token: str = "") -> None:
        self.standing = Standing(self.standing.number + 1, may, token or self.standing.token)

    def _ask(self, method: str, path: str, body: object) -> Answer | None:
        nodes = [node for node in self.storm.cluster.nodes if node.id not in self.storm.struck]
        content = None if body is None else json.dumps(body).encode()
        node = self.dice.choice(nodes or self.storm.cluster.nodes)
        return self.storm.ask(method, f"/api/v1{path}", node, content, Content_Type="application/json")
