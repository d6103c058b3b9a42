"""Content turns cold and hot again while faults come, and the disk of one node rots.

A bit flips in a chunk or in a manifest of this one node only, of content that all three nodes have: what
is read may come from elsewhere, and is never wrong. In the end all of that node is sound again, and each
manifest of the others has its chunks.
"""

import asyncio
import collections
import hashlib
import json
import random
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from node.cold.manifest import ManifestInvalid, decode_manifest
from tests.blobs_on_disk import change_byte, is_on, is_sound_on, rot_chunk
from tests.chaos.contents import Contents
from tests.chaos.members import Member
from tests.cold_blobs import cold_content, cold_names, manifest_of

PAUSE_S = (0.3, 1.5)  # between two acts
ACTS = {"freeze": 8, "rot": 4, "storage": 2, "thaw": 1}  # how often, in proportion
STORAGES = ("cold", "cold", "cold", "auto", "hot")
ROT_TRIES = 5
MENDED_S_MAX = 90.0  # custody looks for notes every few seconds, and for lost replicas as often
MEND_POLL_S = 1.0
SHOWN_MAX = 5
UNREADABLE = (FileNotFoundError, ManifestInvalid, sqlite3.OperationalError)  # it goes now, or its node starts
_BUCKET = "/api/v1/buckets/00000000-0000-0000-0000-000000000000"
_JSON = {"Content-Type": "application/json"}


class ColdContents:
    """What turns contents cold and hot, and damages the cold ones of one node. `run` until `stop`."""

    def __init__(self, nodes: Mapping[str, Member], contents: Contents, dice: random.Random) -> None:
        self.counts = collections.Counter[str]()  # of acts that were done
        self._nodes, self._contents, self._dice = nodes, contents, dice
        self._rotten = nodes[dice.choice(sorted(nodes))]
        self._is_over = False

    async def run(self) -> None:
        """Do one thing after the other until `stop`."""
        await self._set_storage("cold")
        while not self._is_over:
            (act,) = self._dice.choices(list(ACTS), weights=list(ACTS.values()))
            if await self._do(act):
                self.counts[act] += 1
            await asyncio.sleep(self._dice.uniform(*PAUSE_S))

    def stop(self) -> None:
        """Begin nothing more."""
        self._is_over = True

    async def be_mended(self) -> None:
        """Wait until the rotten node has nothing damaged; a fault if it takes longer than MENDED_S_MAX."""
        until_s = asyncio.get_running_loop().time() + MENDED_S_MAX
        while damaged := await asyncio.to_thread(self._damaged):
            if asyncio.get_running_loop().time() > until_s:
                self._contents.fault(
                    f"{self._rotten.id} still has damaged content: {', '.join(damaged[:SHOWN_MAX])}"
                )
                return
            await asyncio.sleep(MEND_POLL_S)

    def judge(self) -> int:
        """Look at the disks of stopped nodes; return how many contents are cold on one or more. Blocks."""
        cold, kept = set[str](), {each.content.sha256 for each in self._contents.kept.values()}
        for node in self._nodes.values():
            for name in cold_names(node.data):
                if node is self._rotten and name not in kept:
                    continue  # it was deleted, damaged or not
                content = cold_content(node.data, name)
                if content is None or hashlib.sha256(content).hexdigest() != name:
                    self._contents.fault(f"{node.id} has a manifest of {name}, and not its chunks")
                cold.add(name)
        return len(cold & kept)

    async def _do(self, act: str) -> bool:
        if act == "rot":
            return await asyncio.to_thread(self._rot)
        if act == "storage":
            return await self._set_storage(self._dice.choice(STORAGES))
        answer = await self._contents.ask("cold", "POST", f"/api/v1/jobs/{act}", {202, 409})
        return answer is not None and answer.status == 202

    async def _set_storage(self, storage: str) -> bool:
        body = json.dumps({"storage": storage}).encode()
        return await self._contents.ask("cold", "PATCH", _BUCKET, {200}, body, **_JSON) is not None

    def _rot(self) -> bool:
        """Flip a bit of content that is cold on the rotten node and sound on all nodes."""
        cold = cold_names(self._rotten.data)
        for name in self._dice.sample(cold, min(ROT_TRIES, len(cold))):
            with suppress(*UNREADABLE):
                if all(is_sound_on(node.data, name) for node in self._nodes.values()):
                    return self._flip(self._rotten.data, name)
        return False

    def _flip(self, data: Path, name: str) -> bool:
        if self._dice.random() < 0.3:
            change_byte(manifest_of(data, name), self._dice.randrange(manifest_of(data, name).stat().st_size))
            return True
        manifest = decode_manifest(manifest_of(data, name).read_bytes(), name)
        return rot_chunk(data, self._dice.choice(list(manifest.ids())))

    def _damaged(self) -> list[str]:
        """Return the contents that the rotten node has, and not sound. Blocks."""
        names = sorted({each.content.sha256 for each in self._contents.kept.values()})
        data = self._rotten.data
        return [name for name in names if is_on(data, name) and not is_sound_on(data, name)]
