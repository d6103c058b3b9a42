"""Lists, however many are asked for in one moment, do not keep coordinators from small requests."""

import asyncio
import json

import pytest

from metadata.model.records import UserRecord, VmPage
from metadata.protocol.queries import GetUser, ListVms
from tests.cluster.harness import Cluster
from tests.cluster.test_members import as_node, caller_of

IMAGES = 40
ASKING = 30
ANSWER_S = 60
DOCUMENT = json.dumps({"a": "b" * 60_000})


@pytest.mark.long
def test_small_request_is_not_answered_behind_all_lists_of_its_moment(own_cluster: Cluster) -> None:
    cluster = own_cluster
    for number in range(IMAGES):
        image = {"filename": f"{number}", "virt_type": "qemu", "format": "raw"}
        answer = cluster.request("POST", "/vms", body=image | {"extra_attributes_json": DOCUMENT})
        assert answer.status == 201
    caller = caller_of("admin", cluster.admin_token)

    async def answered_before() -> int:
        """Of the lists, when the request that was sent behind them is."""
        async with as_node(cluster, cluster.nodes[0]) as client, asyncio.timeout(ANSWER_S):
            lists = [asyncio.create_task(client.read(ListVms(caller=caller), VmPage)) for _ in range(ASKING)]
            await asyncio.sleep(0)  # all of them are on their way
            await client.read(GetUser(caller=caller), UserRecord)
            count = sum(task.done() for task in lists)
            assert all(page.files for page in await asyncio.gather(*lists))
            return count

    assert asyncio.run(answered_before()) < ASKING // 2
