"""The records of one kind of file. Apart from their content, which `files` moves.

Tested by tests/cluster/test_client_records.py.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Generic, TypeVar

import msgspec

from filestore_client.base.pages import check_filters, pages
from filestore_client.base.paths import path_part
from filestore_client.base.records import FileRecord, Image
from filestore_client.base.transport import Transport
from filestore_client.kinds import IMAGE, FileKind

R = TypeVar("R", bound=FileRecord)


class KindFiles(Generic[R]):
    """The records of one kind of file."""

    def __init__(self, transport: Transport, kind: FileKind[R]) -> None:
        self._transport, self._kind = transport, kind

    def list(self, /, **filters: str) -> AsyncIterator[R]:
        """Every file of this kind that the caller may see, oldest first.

        `filters`: `status`, `filename` (how it begins), `project_id` of projects, `md5` of images. Raises
        InvalidRequest for one that the kind does not have.
        """
        kind = self._kind
        check_filters([kind.name], filters)
        return pages(self._transport, kind.path, kind.listed_as, kind.record, **filters)

    async def get(self, file_uuid: str) -> R:
        """One record. Raises NotFound for a file of another kind too."""
        return await self._record("GET", file_uuid)

    async def update(self, /, file_uuid: str, *, if_match: str = "", **fields: object) -> R:
        """Change some fields; the record then. `if_match`: the `etag` that it must still have.

        Raises PreconditionFailed, InvalidRequest.
        """
        return await self._record("PATCH", file_uuid, body=fields, if_match=if_match)

    async def delete(self, file_uuid: str, *, if_match: str = "") -> None:
        """Delete the file for good, or its upload."""
        await self._transport.delete(self._path(file_uuid), headers=_if_match(if_match))

    async def _record(
        self, method: str, file_uuid: str, *, body: Mapping[str, object] | None = None, if_match: str = ""
    ) -> R:
        path = self._path(file_uuid)
        answer, headers = await self._transport.answer(method, path, body=body, headers=_if_match(if_match))
        record = self._transport.decode(answer, self._kind.record, path)
        return msgspec.structs.replace(record, etag=headers.get("ETag", ""))

    def _path(self, file_uuid: str) -> str:
        return f"{self._kind.path}/{path_part(file_uuid)}"


class Images(KindFiles[Image]):
    """The VM images."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport, IMAGE)

    async def find(self, *, md5: str) -> Image | None:
        """An available image whose content has this MD5, the newest of several; None when there is none."""
        found = [image async for image in self.list(md5=md5.lower(), status="available")]
        return found[-1] if found else None


def _if_match(etag: str) -> dict[str, str]:
    return {"If-Match": etag} if etag else {}
