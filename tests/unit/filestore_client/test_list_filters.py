"""A list refuses a filter that it does not have: a server would ignore it, and list everything."""

from collections.abc import Callable
from typing import Any

import pytest

from ca.certificates import Authority
from filestore_client import AsyncClient, Client
from filestore_client.base.errors import InvalidRequest

URL = "https://127.0.0.1:1"
BUCKET = "00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("begin", "name"),
    [
        (lambda client: client.projects.list(colour="red"), "colour"),
        (lambda client: client.images.list(project_id="p"), "project_id"),
        (lambda client: client.backups.list(md5="0" * 32), "md5"),
        (lambda client: client.files.list("backup", file_name="a"), "file_name"),
        (lambda client: client.files.list(project_id="p"), "project_id"),
        (lambda client: client.files.in_bucket(BUCKET, folder="lab"), "folder"),
        (lambda client: client.audit.list(user="otto"), "user"),
    ],
)
async def test_filter_that_a_list_does_not_have_is_refused_by_name(
    peer_authority: Authority, begin: Callable[[Any], Any], name: str
) -> None:
    root_pem = peer_authority.root_pem
    told = f"^{name}: no filter of the [a-z]+ list, which has "
    with Client(URL, root_pem=root_pem, token="t") as client, pytest.raises(InvalidRequest, match=told):
        list(begin(client))
    async with AsyncClient(URL, root_pem=root_pem, token="t") as asynchronous:
        with pytest.raises(InvalidRequest, match=told):
            async for _ in begin(asynchronous):
                pass
