"""Content that no node holds whole: `/api/v1/cluster/damaged`. Apart from `cluster`: pages of its own.

Admins only.
"""

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from api.access import authenticate
from api.bodies.cluster import DamagedContent, DamagedFile, DamagedList, DamagedRange
from api.context import API
from api.pages import NEXT_PAGE, PAGE_PARAMETERS, cursor_text, numbered_page, page_response
from api.spec.operation import Answer, Operation
from metadata.model.records import UserRecord
from metadata.model.replica_records import DamagedBlob, DamagedPage
from metadata.protocol.queries import CheckAdmin, ListDamagedBlobs
from runtime.bounds import Span

_PATH: Final = "/api/v1/cluster/damaged"


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
    answer = DamagedList(count=len(contents), contents=contents, next_cursor=cursor_text(next_cursor))
    return page_response(request, answer, next_cursor)


def _body_of(blob: DamagedBlob) -> DamagedContent:
    return DamagedContent(
        sha256=blob.sha256,
        size_bytes=blob.size_bytes,
        lost_bytes=sum(stop - start for start, stop in blob.gone),
        lost_ranges=_ranges(blob.gone),
        nodes=blob.copies,
        files=[DamagedFile(file_uuid=file.file_uuid, filename=file.filename) for file in blob.files],
    )


def _ranges(spans: Sequence[Span]) -> list[DamagedRange]:
    return [DamagedRange(first=start, last=stop - 1) for start, stop in spans]


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        name="list_damaged",
        tag="Cluster",
        method="GET",
        path=_PATH,
        handler=list_all,
        summary="List damaged content",
        query=PAGE_PARAMETERS,
        answers={200: Answer(description="A page of content.", body=DamagedList, headers=NEXT_PAGE)},
    ),
)
