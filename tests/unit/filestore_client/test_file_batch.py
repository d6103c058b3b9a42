"""The same request for many files: in which order, what is tried again, and what ends it."""

import asyncio

import pytest

from filestore_client.base.errors import Conflict, Forbidden, NotFound
from filestore_client.base.records import FileSummary
from filestore_client.file_batch import AT_ONCE, delete_files, for_each


def file(file_uuid: str, path: str = "", filename: str = "f") -> FileSummary:
    return FileSummary(
        file_uuid=file_uuid,
        filename=filename,
        path=path,
        content_type="",
        size_bytes=0,
        blob_sha256="",
        status="available",
        expires_at="",
        created_at="",
    )


async def test_work_runs_for_a_limited_number_of_items_at_once() -> None:
    running = most = 0

    async def work(_item: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    await for_each(range(100), work)
    assert most == AT_ONCE
    await for_each([], work)


async def test_first_failure_ends_the_others() -> None:
    ended: list[int] = []

    async def work(item: int) -> None:
        if item == 1:
            raise Forbidden("no")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(item)

    with pytest.raises(Forbidden):
        await for_each([0, 1, 2], work)
    assert sorted(ended) == [0, 2]


async def test_newest_file_of_a_path_is_deleted_last() -> None:
    deleted: list[str] = []

    async def delete(file_uuid: str) -> None:
        deleted.append(file_uuid)

    files = [file("old"), file("other", "lab"), file("middle"), file("new")]
    assert await delete_files(files, delete) == {}
    assert [each for each in deleted if each != "other"] == ["old", "middle", "new"]


async def test_chain_is_deleted_from_its_end_as_long_as_something_goes() -> None:
    """Each backup builds on the one before it, and `held` on one that stays."""
    chain = [file(str(number), filename=str(number)) for number in range(20)]
    there = {each.file_uuid for each in chain} | {"held"}

    async def delete(file_uuid: str) -> None:
        if file_uuid == "held" or str(int(file_uuid) + 1) in there:
            raise Conflict("another file builds on it")
        if file_uuid not in there:
            raise NotFound("gone")
        there.remove(file_uuid)

    failures = await delete_files([*chain, file("held")], delete)
    assert there == {"held"}
    assert list(failures) == ["held"]


async def test_other_failures_are_returned_if_the_caller_collects_them() -> None:
    asked: list[str] = []

    async def delete(file_uuid: str) -> None:
        asked.append(file_uuid)
        if file_uuid == "a":
            raise Forbidden("not yours")
        raise NotFound("another client was faster")

    files = [file("a", filename="a"), file("b", filename="b")]
    failures = await delete_files(files, delete, collected=(Forbidden, Conflict))
    assert list(failures) == ["a"]
    assert sorted(asked) == ["a", "b"]
    with pytest.raises(Forbidden):
        await delete_files(files, delete)
