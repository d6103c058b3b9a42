"""Content that no node holds whole: `/api/v1/cluster/damaged`. Apart from `cluster`: pages of its own.

Admins only.
"""

from typing import Final

from aiohttp import web

from api.access import authenticate
from api.bodies.cluster import DamagedContent, DamagedFile, DamagedList, DamagedRange
from api.bodies.views import shown
from api.context import API
from api.pages import NEXT_PAGE, PAGE_PARAMETERS, numbered_page, page_response
from api.spec.operation import Answer, OperationTable
from metadata.model.records import UserRecord
from metadata.model.replica_records import DamagedBlob, DamagedPage
from metadata.protocol.queries import CheckAdmin, ListDamagedBlobs

_PATH: Final = "/api/v1/cluster/damaged"
OPERATIONS: Final = OperationTable("Cluster")


@OPERATIONS.add(
    f"GET {_PATH}",
    "list_damaged",
    "List damaged content",
    Answer("A page of content.", DamagedList, headers=NEXT_PAGE),
    query=PAGE_PARAMETERS,
)
async def list_all(request: web.Request) -> web.Response:
    """List content that is complete on no node, at most 1,000 items of each kind. Admins only.

    Content with bytes that are damaged on every node comes first, followed by content that can be restored.
    """
    caller = await authenticate(request)
    metadata = request.app[API].metadata
    await metadata.read(CheckAdmin(caller=caller), UserRecord)
    blobs: list[DamagedBlob] = []
    for gone in (True, False):
        blobs += (await metadata.read(ListDamagedBlobs(gone=gone), DamagedPage)).blobs
    page, next_cursor = numbered_page(request, enumerate(blobs, start=1))
    contents = [_body_of(blob) for blob in page]
    return page_response(request, DamagedList, contents, next_cursor)


def _body_of(blob: DamagedBlob) -> DamagedContent:
    return shown(
        DamagedContent,
        blob,
        lost_bytes=sum(stop - start for start, stop in blob.gone),
        lost_ranges=[DamagedRange(first=start, last=stop - 1) for start, stop in blob.gone],
        nodes=blob.copies,
        files=[shown(DamagedFile, file) for file in blob.files],
    )
