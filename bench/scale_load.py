"""A process that asks and changes what `bench.scale_state` wrote, as a node would: see `bench.load`.

    python -m bench.scale_load --data NODE_DIRECTORY --token-file FILE

What is read, listed from and deleted lies anywhere among all files: each of a thousand pages, none twice.
"""

import contextlib
import random

from bench.load import ORDER_TIMEOUT_S, Load, Order, Outcome, main, measure
from bench.scale_state import NODES, bucket_of, project_of, uuid_of
from ca.errors import NotFound
from metadata.model.records import PROJECT_FILE, FilePage, ProjectFilePage, ProjectFileRecord
from metadata.protocol.commands import DeleteFile
from metadata.protocol.queries import GetProjectFile, ListBucketFiles, ListProjectFiles

PAGE_ROWS = 100
VICTIMS_ROWS = 20  # that one page gives to be deleted
PAGES_MAX = 1000


class ScaleOrder(Order, frozen=True, kw_only=True):
    """`what` is one of ACTS. `files`: how many were generated, the first with the sequence `first`."""

    files: int = 0
    first: int = 0


class ScaleLoad:
    """One node's worth of clients."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._chance = random.Random()
        self._victims: list[str] = []
        self._order = ScaleOrder(what="")

    async def obey(self, order: ScaleOrder) -> Outcome:
        """Do it and tell. Who is to be deleted is chosen before the time begins."""
        self._order = order
        if order.what == "create":
            return await self._load.obey(order)
        if order.what == "delete":
            await self._choose(order.count)
        acts = {
            "get": self._get,
            "list all": self._list_all,
            "list project": self._list_project,
            "list bucket": self._list_bucket,
            "delete": self._delete,
        }
        return await measure(acts[order.what], order)

    def _anywhere(self) -> int:
        return self._chance.randrange(self._order.files * 7 // 10)  # what follows is a page and more

    async def _get(self, number: int) -> None:
        del number
        file_uuid = uuid_of(self._anywhere() // 10 * 10 + 1)
        query = GetProjectFile(caller=self._load.caller, file_uuid=file_uuid)
        with contextlib.suppress(NotFound):  # deleted in a round before
            await self._load.metadata.read(query, ProjectFileRecord, timeout_s=ORDER_TIMEOUT_S)

    async def _list_all(self, number: int) -> None:
        del number
        cursor = self._order.first + self._anywhere()
        query = ListProjectFiles(caller=self._load.caller, limit=PAGE_ROWS, cursor=cursor)
        await self._load.metadata.read(query, ProjectFilePage, timeout_s=ORDER_TIMEOUT_S)

    async def _list_project(self, number: int) -> None:
        del number
        at = self._anywhere()
        query = ListProjectFiles(
            caller=self._load.caller,
            limit=PAGE_ROWS,
            cursor=self._order.first + at,
            project_id=project_of(self._anywhere(), self._order.files),
        )
        await self._load.metadata.read(query, ProjectFilePage, timeout_s=ORDER_TIMEOUT_S)

    async def _list_bucket(self, number: int) -> None:
        del number
        at = self._anywhere()
        query = ListBucketFiles(
            caller=self._load.caller,
            limit=PAGE_ROWS,
            cursor=self._order.first + at,
            bucket_id=bucket_of(at, self._order.files),
            filename_prefix="site-",  # all of them, which takes a look at each
        )
        await self._load.metadata.read(query, FilePage, timeout_s=ORDER_TIMEOUT_S)

    async def _delete(self, number: int) -> None:
        command = DeleteFile(caller=self._load.caller, file_uuid=self._victims[number], kind=PROJECT_FILE)
        await self._load.metadata.propose(command, type(None), timeout_s=ORDER_TIMEOUT_S)

    async def _choose(self, count: int) -> None:
        """Files that are there, of which no other process chooses any."""
        order, found = self._order, dict[str, None]()
        for _ in range(PAGES_MAX):
            if len(found) >= count:
                break
            query = ListProjectFiles(
                caller=self._load.caller,
                limit=VICTIMS_ROWS,
                cursor=order.first + self._anywhere(),
                status="available",
            )
            page = await self._load.metadata.read(query, ProjectFilePage, timeout_s=ORDER_TIMEOUT_S)
            for file in page.files:
                if int(file.file_uuid[-6:], 16) % NODES == self._load.number % NODES:
                    found[file.file_uuid] = None
        assert len(found) >= count, "the state has too few files for so many to be deleted"
        self._victims = list(found)
        self._chance.shuffle(self._victims)


if __name__ == "__main__":
    main(lambda load: ScaleLoad(load).obey, ScaleOrder)
