"""Images by the MD5 of their content: from a GNS3 server into the store, from there to servers, and both.

Those that projects name are stored in the run that backs the projects up.

The actions are planned first, as data; a dry run prints the plan. An image is never overwritten: one with the
same name but other content is reported, and not changed on either side.
"""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from typing import Final, Literal

from ca.errors import Conflict, NotFound, Unavailable
from deploy.base.failures import FAILURES, Failure
from deploy.base.printed import printable_name
from deploy.base.terminal import SetProgress
from deploy.gns3.damage import Damages
from deploy.gns3.records import EMULATORS, ServerImage, is_built_in
from deploy.gns3.server import Gns3Server
from deploy.gns3.stored import label_of, manifest_of, named_images, stored_images
from filestore_client import AsyncClient
from filestore_client.base.errors import ChecksumMismatch
from filestore_client.base.records import Image, Project
from filestore_client.kinds import image_format

Act = Literal["copy", "there", "conflict"]
Progress = SetProgress
Bar = Callable[[str], AbstractContextManager[Progress]]
CUTS_MAX: Final = 20  # of one image while it is read
_TYPES: Final = {emulator: kind for kind, emulator in EMULATORS.items()}


@dataclass(frozen=True, slots=True)
class PlannedImage:
    """A planned action on an image. `why` is the reason of a conflict."""

    image: ServerImage
    act: Act
    file_uuid: str = ""
    why: str = ""


def plan_push(on_server: Iterable[ServerImage], in_store: Mapping[str, Image]) -> list[PlannedImage]:
    """Which images of a server the store lacks. Pure."""
    planned: list[PlannedImage] = []
    seen: set[str] = set()
    for image in on_server:
        is_there = image.checksum in in_store or image.checksum in seen
        seen.add(image.checksum)
        planned.append(PlannedImage(image, "there" if is_there else "copy"))
    return planned


def plan_pull(in_store: Iterable[Image], on_server: Sequence[ServerImage]) -> list[PlannedImage]:
    """Which images of the store a server lacks. Pure.

    A server finds images by their names: of two that have one name and other content, the first stays.
    """
    contents = {image.checksum for image in on_server}
    names = {image.filename: image.checksum for image in on_server}
    planned: list[PlannedImage] = []
    for stored in in_store:
        if stored.virt_type not in _TYPES:
            continue
        image = image_of(stored)
        if stored.md5 in contents:
            planned.append(PlannedImage(image, "there", stored.file_uuid))
        elif stored.filename in names:
            why = f"there is another image with this name, with the MD5 {names[stored.filename]}"
            planned.append(PlannedImage(image, "conflict", stored.file_uuid, why))
        else:
            planned.append(PlannedImage(image, "copy", stored.file_uuid))
            contents.add(stored.md5)
            names[stored.filename] = stored.md5
    return planned


def image_of(stored: Image, *, filename: str = "") -> ServerImage:
    """A stored image as a server has it, under its name or another one."""
    return ServerImage(
        filename=filename or stored.filename,
        image_type=_TYPES.get(stored.virt_type, "qemu"),
        image_size=stored.size_bytes,
        checksum=stored.md5,
    )


async def push_image(
    server: Gns3Server,
    client: AsyncClient,
    image: ServerImage,
    *,
    bucket_id: str = "",
    progress: Progress = lambda _done, _total: None,
) -> Image:
    """Store an image of a server. What a cut or a killed command left is gone on with.

    Raises ChecksumMismatch when the server's file is not what it lists; then nothing of it is stored.
    """
    head = await _head_of(server, image)
    content = _compared(_whole(server, image), image, server.name)
    stored = await client.files.upload(
        content,
        kind="image",
        filename=label_of(image.filename),
        identity=f"gns3 image {image.checksum}",
        progress=lambda done, _: progress(done, image.image_size),
        virt_type=EMULATORS[image.image_type],
        format=image_format(head, image.filename) or ("raw" if image.image_type == "qemu" else "bin"),
        content_type="application/octet-stream",
        bucket_id=bucket_id or None,
    )
    assert isinstance(stored, Image)
    return stored


async def pull_image(
    server: Gns3Server,
    client: AsyncClient,
    image: ServerImage,
    file_uuid: str,
    *,
    progress: Progress = lambda _done, _total: None,
) -> None:
    """Give a stored image to a server that has none of this name.

    Raises Conflict when it has one meanwhile; what breaks off leaves nothing there.
    """
    present = await server.images()
    named = next((each for each in present if each.filename == image.filename), None)
    if named is not None and named.checksum != image.checksum:
        raise Conflict(
            f"GNS3 server {server.name} has another image named {printable_name(image.filename)}, with "
            f"the MD5 {named.checksum} instead of {image.checksum}. It was not changed."
        )
    if named is not None:
        return
    is_twin = any(each.checksum == image.checksum for each in present)
    async with aclosing(_counted(client.files.read(file_uuid), image.image_size, progress)) as content:
        await server.write_image(image, content, is_twin=is_twin)


async def _head_of(server: Gns3Server, image: ServerImage) -> bytes:
    async with aclosing(server.read_image(image)) as parts:
        return await anext(parts, b"")


async def _whole(server: Gns3Server, image: ServerImage) -> AsyncGenerator[bytes, None]:
    """The content of an image; a connection that is cut is replaced."""
    done_bytes = 0
    for cut in range(CUTS_MAX + 1):
        try:
            async with aclosing(server.read_image(image, done_bytes)) as parts:
                async for part in parts:
                    done_bytes += len(part)
                    yield part
        except Unavailable:
            if cut == CUTS_MAX:
                raise
            await server.images()  # asks until the server answers, or raises
        else:
            return
        if done_bytes >= image.image_size:
            return


async def _compared(
    content: AsyncIterator[bytes], image: ServerImage, server: str
) -> AsyncGenerator[bytes, None]:
    found = hashlib.md5(usedforsecurity=False)
    async for part in content:
        found.update(part)
        yield part
    if image.checksum and found.hexdigest() != image.checksum:
        raise ChecksumMismatch(
            f"{printable_name(image.filename)} of GNS3 server {server} has the MD5 "
            f"{found.hexdigest()}, but the server lists {image.checksum}: it was changed or is "
            "damaged. It was not stored."
        )


async def _counted(
    content: AsyncIterator[bytes], size_bytes: int, progress: Progress
) -> AsyncGenerator[bytes, None]:
    done_bytes = 0
    async for part in content:
        done_bytes += len(part)
        progress(done_bytes, size_bytes)
        yield part


class NamedImages:
    """The images that projects name, of a server: what it and the store have is looked up once in a run."""

    def __init__(
        self,
        server: Gns3Server,
        client: AsyncClient,
        damages: Damages,
        *,
        owner_id: str,
        bucket_id: str,
        bar: Bar,
    ) -> None:
        self._server, self._client, self._damages = server, client, damages
        self._owner_id, self._bucket_id, self._bar = owner_id, bucket_id, bar
        self._stored_md5s: set[str] | Failure | None = None
        self._server_images: list[ServerImage] | Failure | None = None

    async def store(self, backup: Project, topology: bytes) -> tuple[int, list[Failure]]:
        """Store the images that a backup names and the store lacks: how many, and what failed.

        The server is asked only if there are some. `topology`: the topology in the backup; b"" if it has to
        be read there.
        """
        count = 0
        errors: list[Failure] = []
        try:
            stored_md5s = await self._stored()
            named = named_images(topology) if topology else (await manifest_of(self._client, backup)).images
            lacking = [
                each for each in named if not is_built_in(each.filename) and each.md5 not in stored_md5s
            ]
            on_server = await self._on_server() if lacking else []
        except FAILURES as error:
            return 0, [error]
        for needed in lacking:
            if needed.md5 in stored_md5s:  # by now
                continue
            image = _image_named(on_server, needed.filename, needed.md5)
            if image is None:
                if needed.md5:  # else it may be one that Docker fetches
                    errors.append(self._absent(f"The image {needed.filename} (MD5 {needed.md5})"))
                continue
            if image.checksum in stored_md5s:
                continue
            try:
                with self._bar(image.filename) as progress:
                    await push_image(
                        self._server, self._client, image, bucket_id=self._bucket_id, progress=progress
                    )
                stored_md5s.add(image.checksum)
                count += 1
            except FAILURES as error:
                errors.append(error)
        return count, errors

    def _absent(self, told: str) -> Failure:
        if self._server.runs:
            return NotFound(f"{told} is neither in the store nor on the server.")
        return Unavailable(f"{told} is not in the store, and GNS3 server {self._server.name} does not run.")

    async def _stored(self) -> set[str]:
        """The MD5s of whole images in the store. Raises FilestoreError, the same one again in this run."""
        if self._stored_md5s is None:
            try:
                # Other users may delete theirs, and a damaged one is stored again.
                own = (await stored_images(self._client, self._owner_id)).own
                self._stored_md5s = set(await self._damages.whole_images(own))
            except FAILURES as error:
                self._stored_md5s = error
        if isinstance(self._stored_md5s, FAILURES):
            raise self._stored_md5s
        return self._stored_md5s

    async def _on_server(self) -> list[ServerImage]:
        """The images of the server; none if it does not run. Raises as `_stored` does."""
        if self._server_images is None:
            try:
                self._server_images = await self._server.images() if self._server.runs else []
            except FAILURES as error:
                self._server_images = error
        if isinstance(self._server_images, FAILURES):
            raise self._server_images
        return self._server_images


def _image_named(on_server: list[ServerImage], filename: str, md5: str) -> ServerImage | None:
    """The server's image of this content, or where the project says no checksum, of this name."""
    for image in on_server:
        if (image.checksum == md5) if md5 else (image.filename == filename):
            return image
    return None
