"""Requests about many files, some at a time. Shared by the command and the file system for fsspec.

The command works without the packages that the file system needs.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from filestore_client.base.errors import Conflict, Gone, NotFound
from filestore_client.base.records import FileRecord, FileSummary
from filestore_client.transfer.ranges import first_failure

AT_ONCE: Final = 8  # requests about single files
T = TypeVar("T")


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]], at_once: int = AT_ONCE) -> None:
    """Do this work for each item, for `at_once` of them at a time. The first failure cancels the others."""
    left = iter(items)

    async def take() -> None:
        for item in left:
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(take())
    except BaseExceptionGroup as failures:
        raise first_failure(failures) from None


async def delete_files(
    files: Sequence[FileSummary],
    delete: Callable[[str], Awaitable[None]],
    collected: tuple[type[Exception], ...] = (Conflict,),
) -> dict[str, Exception]:
    """Delete files by their ids; return what has kept the others, by file_uuid.

    The newest file of a path is deleted last, so that no older one shows up meanwhile. A backup cannot be
    deleted before those that build on it, so what was refused with Conflict is tried again as long as others
    go. `collected`: failures that are returned; any other one ends the deletion, and is raised.
    """
    failures: dict[str, Exception] = {}

    async def delete_versions(versions: Iterable[FileSummary]) -> None:
        for file in versions:
            failures.pop(file.file_uuid, None)
            try:
                await delete(file.file_uuid)
            except (NotFound, Gone):  # another client was faster
                pass
            except collected as error:
                failures[file.file_uuid] = error

    left = list(files)
    while left:
        by_path: dict[tuple[str, str], list[FileSummary]] = defaultdict(list)
        for file in left:
            by_path[file.path, file.filename].append(file)
        await for_each(by_path.values(), delete_versions)
        refused = [file for file in left if isinstance(failures.get(file.file_uuid), Conflict)]
        left = refused if len(refused) < len(left) else []
    return failures


async def with_owners(
    files: Collection[FileSummary], get: Callable[[str], Awaitable[FileRecord]]
) -> list[FileSummary]:
    """Return the files with their owners. `get`: returns a record; a file that is gone is left out.

    until 0.3.0: lists of release 0.1.0 do not say who owns a file.
    """
    known = {file.file_uuid: file for file in files}

    async def look_up(file: FileSummary) -> None:
        try:
            owner_id = (await get(file.file_uuid)).owner_id
        except (NotFound, Gone):
            del known[file.file_uuid]
        else:
            known[file.file_uuid] = msgspec.structs.replace(file, owner_id=owner_id)

    await for_each([file for file in files if not file.owner_id], look_up)
    return list(known.values())
