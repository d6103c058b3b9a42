"""A client of a storm: uploads one file after another, in many ways, and judges what it is told."""

import base64
import hashlib
import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from deploy.dev_cluster import Member
from tests.cluster.harness import Answer
from tests.cluster.storm_contents import Upload, content
from tests.cluster.upload_storm import DEAD_S, FROZEN_S, WAYS, Storm

SIZE_BYTES_MIN, SIZE_BYTES_MAX = 64 << 10, 40 << 20
BUSY: Final = (409, 423, 503)  # ask where it stands, and go on


class Client:
    """One client of the storm, in a thread: uploads one file after another."""

    def __init__(self, storm: Storm, number: int) -> None:
        self.storm, self.number = storm, number
        self.dice = random.Random(f"{storm.seed}/{number}")

    def run(self) -> None:
        """Until the storm is over."""
        made = 0
        while not self.storm.is_over.is_set():
            made += 1
            try:
                if upload := self.create(f"{self.storm.seed}/{self.number}/{made}"):
                    self.act(upload)
            except Exception as error:
                self.storm.fault(f"client {self.number}: {error!r}")
                raise

    def create(self, name: str) -> Upload | None:
        dice, storm = self.dice, self.storm
        size = int(SIZE_BYTES_MIN * (SIZE_BYTES_MAX / SIZE_BYTES_MIN) ** dice.random())
        is_fixed = dice.random() < 0.4
        if is_fixed and dice.random() < 0.4:  # the same content again and again
            name, size = f"{storm.seed}/pool{dice.randrange(3)}", 300_000 * dice.choice([1, 20])
        fields: dict[str, object] = {"filename": "storm", "project_id": "lab", "size_bytes": size}
        if is_fixed:
            fields["blob_sha256"] = hashlib.sha256(content(name, 0, 0, size)).hexdigest()
        is_writers = dice.random() < 0.2
        if is_writers:
            fields["bucket_id"] = storm.writer.bucket_id
        body = json.dumps(fields).encode()
        answer = storm.ask(
            "POST", "/api/v1/project-files", self.node(), body, Content_Type="application/json"
        )
        if answer is None or answer.status != 201:
            return None
        url = str(answer.json["upload_url"])
        holder = next(node for node in storm.cluster.nodes if url.startswith(node.url))
        upload = Upload(str(answer.json["file_uuid"]), name, size, is_fixed, holder, is_writers)
        storm.uploads.append(upload)
        return upload

    def ask(
        self,
        upload: Upload,
        method: str,
        node: Member,
        body: bytes | None = None,
        *,
        path: str = "",
        **options: Any,
    ) -> Answer | None:
        """Of the upload, as the one whose it is."""
        storm, before = self.storm, self.storm.writer.standing
        path = path or upload.path
        if not upload.is_writers:
            return storm.ask(method, path, node, body, **options)
        answer = storm.ask(method, path, node, body, token=before.token, **options)
        return storm.writer.judge(before, answer, f"{method} {path} at {node.id}")

    def node(self, upload: Upload | None = None) -> Member:
        nodes = self.storm.cluster.nodes
        if self.dice.random() < 0.85:  # who does not answer is seldom asked
            nodes = [node for node in nodes if node.id not in self.storm.struck] or nodes
        if upload is not None and self.dice.random() < 0.3 and upload.first_holder in nodes:
            return upload.first_holder
        return self.dice.choice(nodes)

    def act(self, upload: Upload) -> None:
        """Until it has ended, or the storm has."""
        is_whole = not upload.is_fixed and self.dice.random() < 0.25
        while not self.storm.is_over.is_set() and not upload.is_complete and not upload.is_deleted:
            (self.put_whole if is_whole else self.step)(upload)

    def aim(self, upload: Upload, share: float) -> Callable[[], None]:
        """What strikes the holder a moment after the last byte was sent."""
        dice = self.dice
        if dice.random() >= share:
            return lambda: None
        wait_s, how = dice.choice([0.0, 0.005, 0.02, 0.05, 0.1, 0.3]), dice.choice(WAYS)
        lasts_s = dice.uniform(*(DEAD_S if how == "kill" else FROZEN_S))
        at_once_max = 2 if dice.random() < 0.35 else 1
        victim = self.storm.holder(upload) if dice.random() < 0.8 else self.node()

        def strike() -> None:
            time.sleep(wait_s)
            self.storm.strike(victim, how, lasts_s, at_once_max=at_once_max)

        return strike

    def step(self, upload: Upload) -> None:
        """Ask where it stands, and go on there, in one of many ways."""
        offset = self.stands_at(upload)
        if offset is None or upload.is_complete or upload.is_deleted:
            return
        chance = self.dice.random()
        rest = upload.size - offset
        length = rest if rest < (1 << 20) or chance < 0.5 else self.dice.randrange(1, rest)
        if chance < 0.08:
            self.race(upload, offset, length)
        elif chance < 0.12:
            self.delete_while(upload, offset, length)
        elif chance < 0.16 and not upload.is_fixed:
            self.patch_wrongly(upload, offset, rest)
        else:
            self.patch(upload, offset, length)

    def stands_at(self, upload: Upload, method: str = "HEAD") -> int | None:
        with upload.lock:
            floor = upload.told
        node = self.node(upload)
        if method == "GET":
            answer = self.ask(upload, "GET", node, path=f"/api/v1/files/{upload.file_uuid}/status")
        else:
            answer = self.ask(upload, "HEAD", node)
        if answer is None:
            return None
        if answer.status in (404, 410):
            if not upload.may_be_deleted:
                self.storm.fault(f"{upload.file_uuid}: {answer.status}, and nobody deleted it")
            upload.is_deleted = True
        if answer.status != 200:
            if answer.status not in (404, *BUSY):
                self.storm.fault(f"{upload.file_uuid}: {method} {answer.status}")
            time.sleep(0.2)
            return None
        offset = int(answer.json["offset"] if method == "GET" else answer.headers["upload-offset"])
        self.learn(upload, offset, floor, f"{method} at {node.id}")
        if method == "HEAD" and offset == upload.size:
            upload.is_complete = True
        return offset

    def learn(self, upload: Upload, offset: int, floor: int, where: str) -> None:
        with upload.lock:
            if upload.is_deleted:
                self.storm.fault(f"{upload.file_uuid}: {where} tells {offset} after it was deleted")
            if upload.is_loose:
                upload.told = offset
                return
            if offset < floor:
                self.storm.fault(f"{upload.file_uuid}: {where} tells {offset}, {floor} was told before")
            upload.told = max(upload.told, offset)

    def patch(self, upload: Upload, offset: int, length: int, *, share: float = 0.35) -> int | None:
        """One PATCH; the variant that was taken, None for none."""
        dice, variant = self.dice, upload.next_variant()
        with upload.lock:
            floor = upload.told
        piece = content(upload.name, variant, offset, offset + length)
        cut = dice.randrange(length) if length and dice.random() < 0.15 else None
        headers = {"Upload_Offset": str(offset)}
        if upload.is_fixed and dice.random() < 0.3:
            headers["Repr_Digest"] = f"sha-256=:{_base64(content(upload.name, 0, 0, upload.size))}:"
        node, hit = self.node(upload), self.aim(upload, share)
        answer = self.ask(upload, "PATCH", node, piece, cut=cut, when_sent=hit, **headers)
        return self.judge(upload, offset, length, variant, answer, floor, node)

    def judge(
        self,
        upload: Upload,
        offset: int,
        length: int,
        variant: int,
        answer: Answer | None,
        floor: int,
        node: Member,
    ) -> int | None:
        if answer is None:
            return None
        where = f"PATCH at {node.id}"
        if answer.status == 204:
            stop = int(answer.headers["upload-offset"])
            if stop != offset + length:
                self.storm.fault(f"{upload.file_uuid}: {where} of {offset}+{length} answers {stop}")
            with upload.lock:
                for start, end, other in upload.sure:
                    if other != variant and max(start, offset) < min(end, stop) and not upload.is_loose:
                        self.storm.fault(f"{upload.file_uuid}: two were told that {offset} is theirs")
                if not upload.is_loose or stop == upload.size:
                    upload.sure.append((offset, stop, variant))
                upload.is_complete = upload.is_complete or stop == upload.size
            self.learn(upload, stop, floor, where)
            return variant
        if answer.status == 409 and "upload-offset" in answer.headers:
            self.learn(upload, int(answer.headers["upload-offset"]), floor, where)
        elif answer.status not in (404, *BUSY):
            self.storm.fault(f"{upload.file_uuid}: {where} {answer.status} {answer.body[:200]!r}")
        if answer.status in (423, 503):
            time.sleep(0.2)
        return None

    def race(self, upload: Upload, offset: int, length: int) -> None:
        """Two clients go on at the same offset at once."""
        other = Client(self.storm, self.number)
        other.dice = random.Random(self.dice.random())
        thread = threading.Thread(target=other.patch, args=(upload, offset, length), kwargs={"share": 0.4})
        thread.start()
        self.patch(upload, offset, length, share=0.0)
        thread.join()

    def delete_while(self, upload: Upload, offset: int, length: int) -> None:
        """One client deletes what another writes."""
        upload.may_be_deleted = True
        other = Client(self.storm, self.number)
        other.dice = random.Random(self.dice.random())
        thread = threading.Thread(target=other.patch, args=(upload, offset, length), kwargs={"share": 0.4})
        was_complete = upload.is_complete
        thread.start()
        time.sleep(self.dice.random() * 0.3)
        if self.dice.random() < 0.5:
            answer = self.storm.ask("DELETE", upload.path, self.node(upload))
            is_gone = answer is not None and answer.status == 204
        else:
            was_complete = False  # what is available can be deleted too
            answer = self.storm.ask("DELETE", f"/api/v1/files/{upload.file_uuid}", self.node(upload))
            is_gone = answer is not None and answer.status == 200
        thread.join()
        if is_gone and was_complete:
            self.storm.fault(f"{upload.file_uuid}: was given up after it was complete")
        upload.is_deleted = upload.is_deleted or is_gone

    def patch_wrongly(self, upload: Upload, offset: int, rest: int) -> None:
        """A piece, or all of the rest, whose digest is another."""
        variant, wrong = upload.next_variant(), _base64(b"other")
        with upload.lock:
            floor = upload.told
        headers = {"Upload_Offset": str(offset)}
        if self.dice.random() < 0.5:
            headers["Upload_Checksum"] = f"sha256 {wrong}"
        else:
            headers["Repr_Digest"] = f"sha-256=:{wrong}:"
            with upload.lock:
                upload.is_loose, upload.sure = True, []  # nothing of it may be left
        piece, node = content(upload.name, variant, offset, offset + rest), self.node(upload)
        hit = self.aim(upload, 0.4)
        answer = self.ask(upload, "PATCH", node, piece, when_sent=hit, **headers)
        if answer is not None and answer.status == 204:
            self.storm.fault(f"{upload.file_uuid}: taken at {node.id} with a wrong digest")
        if answer is not None and answer.status == 460:
            return
        self.judge(upload, offset, rest, variant, answer, floor, node)

    def put_whole(self, upload: Upload) -> None:
        """The whole content by PUT, of one variant or of two at once."""
        upload.is_loose = True
        clients = [self]
        if self.dice.random() < 0.3:
            other = Client(self.storm, self.number)
            other.dice = random.Random(self.dice.random())
            clients.append(other)
        threads = [threading.Thread(target=client._put, args=(upload,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _put(self, upload: Upload) -> None:
        variant = upload.next_variant()
        body = content(upload.name, variant, 0, upload.size)
        node, hit = self.node(upload), self.aim(upload, 0.35)
        answer = self.ask(upload, "PUT", node, body, when_sent=hit)
        if answer is None:
            return
        if answer.status == 200:
            with upload.lock:
                if upload.whole_stored not in (None, variant):
                    self.storm.fault(f"{upload.file_uuid}: two whole contents were taken")
                upload.whole_stored, upload.is_complete = variant, True
            if answer.json["blob_sha256"] != hashlib.sha256(body).hexdigest():
                self.storm.fault(f"{upload.file_uuid}: PUT at {node.id} answers another sha256")
        elif answer.status == 409:  # an earlier PUT without an answer has made it
            upload.is_complete = self.stands_at(upload) == upload.size
        elif answer.status not in BUSY:
            self.storm.fault(f"{upload.file_uuid}: PUT at {node.id} {answer.status} {answer.body[:200]!r}")
        time.sleep(0.1)


def _base64(body: bytes) -> str:
    return base64.b64encode(hashlib.sha256(body).digest()).decode()
