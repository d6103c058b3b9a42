"""Trials of whole processes: start a cluster of which one directory was harmed, and ask it for everything.

Whatever is answered is right, over TLS, at every member that serves; a member that does not serve says why.
Unfinished uploads go on, and end with what was sent. The other members run on.
"""

import hashlib
import random
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec
from msgspec import Struct

from ca.errors import Unavailable
from ca.tls import client_context
from deploy.dev_cluster import Member
from deploy.processes import is_ready, wait_until
from node.base.config import NodeFiles
from node.base.instance import _Note, _place
from tests.cluster.coordinator_damage import snapshot
from tests.cluster.harness import Answer, Cluster
from tests.cluster.upload_steps import TUS, Steps
from tests.healing.coordinator_trials import cut_to_records
from tests.healing.harms import Harm
from tests.healing.trial_outcomes import Outcome

HARMED: Final = ("node-1", "coordinator-1")
DEADLINE_S: Final = 150.0
GIVE_UP_S: Final = 130  # then the trial itself says where it stood, and ends its processes
START_S: Final = 25.0
SMALL_FILES: Final = 12  # that come before the earlier state is copied, and as many after
LARGE_BYTES: Final = 5_000_000
UPLOAD_BYTES: Final = 900_000
SENT_BYTES: Final = 400_000
TRIES_MAX: Final = 20  # of an upload that the cluster cannot take now


class Model(Struct):
    """What the cluster has acknowledged."""

    files: dict[str, str] = {}  # the sha256 of each
    records: dict[str, Any] = {}
    uploads: dict[str, int] = {}  # the seed of each content


def prepare(directory: Path, seed: int) -> None:
    """`older` and `newer` states of a whole cluster, as if all were killed at once."""
    dice, model, made = random.Random(f"{seed} processes"), Model(), directory / "made"
    with _cluster(made) as cluster:
        _fill(cluster, model, dice)
        cluster.terminate(*cluster.members)
        shutil.copytree(made, directory / "older")
        cluster.restart(*cluster.members)
        cluster.wait_healthy()
        for file_uuid in dice.sample(sorted(model.files), 3):
            assert cluster.request("DELETE", f"/files/{file_uuid}?now=1").status == 200
            del model.files[file_uuid]
        _fill(cluster, model, dice)
        for upload_seed in (dice.randrange(1 << 30), dice.randrange(1 << 30)):
            steps = Steps(cluster, _content(upload_seed))
            assert steps.patch(0, SENT_BYTES).status == 204
            model.uploads[steps.file_uuid] = upload_seed
        for file_uuid in model.files:
            model.records[file_uuid] = cluster.get(f"/project-files/{file_uuid}").json
        cluster.kill(*cluster.members)
        shutil.copytree(made, directory / "newer")
    for state in ("older", "newer"):
        for coordinator in (directory / state).glob("coordinator-*"):
            snapshot("*.snapshot")(coordinator)
            for path in (coordinator / "log").glob("*.log"):
                cut_to_records(path)
    (directory / "model.json").write_bytes(msgspec.json.encode(model))
    shutil.rmtree(made)


def try_it(directory: Path, model_path: Path, harms: Sequence[Harm]) -> Outcome:
    """What comes of the cluster in this directory."""
    del harms
    outcome, model = Outcome(), msgspec.json.decode(model_path.read_bytes(), type=Model)
    for log in (directory / "logs").glob("*.log"):
        log.unlink()
    cluster = _cluster(directory)
    cluster.context = client_context((directory / "coordinator-2" / "ca.pem").read_text())
    for node in cluster.nodes:
        _lay_in_place(NodeFiles(cluster.data(node)).lock)
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(GIVE_UP_S)
    try:
        cluster.restart(*cluster.members)
        _wait_decided(cluster, outcome)
        _read_all(cluster, model, outcome)
        _end_uploads(cluster, model, outcome)
        _read_all(cluster, model, outcome)
    except TimeoutError as error:
        outcome.faults.append(str(error))
    finally:
        cluster.kill(*[member for member in cluster.members if cluster.runs(member)])
    for name, text in cluster.logs().items():
        if "Traceback" in text:
            outcome.faults.append(f"{name} says {text[text.index('Traceback') - 500 :][:3000]}")
    return outcome


def _cluster(directory: Path) -> Cluster:
    return Cluster(directory, node_count=2, replicas=2, write_quorum=2)


def _lay_in_place(lock: Path) -> None:
    """Let the note in the file that a node locks be of this copy: else the cluster waits for the process that
    ran on the original.
    """
    with suppress(OSError, ValueError), lock.open("r+b") as file:
        note = msgspec.json.decode(file.read(), type=_Note)
        file.seek(0)
        file.write(msgspec.json.encode(msgspec.structs.replace(note, place=_place(file.fileno()))))
        file.truncate()


def _give_up(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError("the trial has not come to its end")


def _content(seed: int) -> bytes:
    return random.Random(seed).randbytes(UPLOAD_BYTES)


def _fill(cluster: Cluster, model: Model, dice: random.Random) -> None:
    for size_bytes in [*(dice.randrange(100, 20_000) for _ in range(SMALL_FILES)), LARGE_BYTES]:
        content = dice.randbytes(size_bytes)
        model.files[cluster.store_everywhere(content)] = hashlib.sha256(content).hexdigest()


def _wait_decided(cluster: Cluster, outcome: Outcome) -> None:
    """Until each serves or has ended; who does neither says why."""

    def decided() -> bool:
        return all(
            not cluster.runs(each) or is_ready(each.api_port, cluster.context) for each in cluster.members
        )

    with suppress(Unavailable):
        wait_until(decided, what="all decide", timeout_s=START_S)
    for member in cluster.members:
        if cluster.runs(member):
            if not is_ready(member.api_port, cluster.context):
                outcome.refusals.append(f"{member.id} runs, and is not ready")
            continue
        words = cluster.last_words(member)
        if member.id not in HARMED:
            outcome.faults.append(f"{member.id} ended: {words}")
        elif "filestore: " not in words and '"level": "' not in words:
            outcome.faults.append(f"{member.id} ended without a sentence: {words}")
        else:
            outcome.refusals.append(words)


def _serving(cluster: Cluster) -> Iterator[Member]:
    for member in cluster.members:
        if cluster.runs(member) and is_ready(member.api_port, cluster.context):
            yield member


def _read_all(cluster: Cluster, model: Model, outcome: Outcome) -> None:
    """Every record at every member, every content at every node."""
    for member in list(_serving(cluster)):
        for file_uuid, sha256 in model.files.items():
            record = _asked(cluster, f"/project-files/{file_uuid}", member)
            if record is not None and (record.status, record.json) != (200, model.records[file_uuid]):
                outcome.faults.append(
                    f"{member.id}: the record {file_uuid} is {record.status} {record.body[:500]!r}"
                )
            if member.role != "node":
                continue
            answer = _asked(cluster, f"/files/{file_uuid}", member)
            if answer is None:
                continue
            if answer.status != 200 or hashlib.sha256(answer.body).hexdigest() != sha256:
                outcome.faults.append(
                    f"{member.id}: {file_uuid} ({sha256}) is {answer.status} and other bytes"
                )


def _asked(cluster: Cluster, path: str, member: Member) -> Answer | None:
    """An answer; None from one that cannot answer now, or has ended meanwhile."""
    try:
        answer = cluster.get(path, node=member)
    except OSError:
        return None
    return None if answer.status == 503 else answer


def _end_uploads(cluster: Cluster, model: Model, outcome: Outcome) -> None:
    """They go on from what the cluster says, at a node that serves, and end with what was sent."""
    nodes = [member for member in _serving(cluster) if member.role == "node"]
    if len(nodes) < len(cluster.nodes):
        return
    for file_uuid, seed in model.uploads.items():
        steps = _Resumed(cluster, file_uuid, _content(seed), nodes[0])
        if not steps.go_on():
            outcome.refusals.append(f"upload {file_uuid} could not go on")
            continue
        answer = cluster.get(f"/files/{file_uuid}", node=nodes[-1])
        if answer.status == 200 and answer.body != steps.content:
            outcome.faults.append(f"upload {file_uuid} ended with other content than was sent")


class _Resumed(Steps):
    """An upload that was begun before."""

    def __init__(self, cluster: Cluster, file_uuid: str, content: bytes, holder: Member) -> None:
        self.cluster, self.file_uuid, self.content, self.holder = cluster, file_uuid, content, holder
        self.path = f"/api/v1/files/{file_uuid}/content"

    def go_on(self) -> bool:
        """Whether it came to its end."""
        for _ in range(TRIES_MAX):
            told = self.cluster.request("HEAD", self.path, node=self.holder, headers=TUS)
            if told.status != 200:
                continue
            offset = int(told.headers["upload-offset"])
            if offset == len(self.content) or self.patch(offset, len(self.content)).status == 204:
                return True
        return False
