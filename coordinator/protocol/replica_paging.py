"""What the log names a node for and does not have it drop, page by page in the order of the sha256."""

from collections.abc import AsyncGenerator, Awaitable, Callable

from coordinator.model.replica_records import HeldReplica, ReplicaPage
from coordinator.protocol.queries import ListReplicas


async def held_pages(
    read: Callable[[ListReplicas], Awaitable[ReplicaPage]], node_id: str, *, rows: int, after: str = ""
) -> AsyncGenerator[list[HeldReplica], None]:
    """`rows` is what is read at once; a page may be empty. Begins behind `after`. Raises what `read` does."""
    more = True
    while more:
        page = await read(ListReplicas(node_id=node_id, after=after, limit=rows))
        yield [replica for replica in page.replicas if not replica.doomed]
        more = page.more
        after = page.replicas[-1].sha256 if page.replicas else after
