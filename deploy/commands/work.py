"""`filestore node work` and `filestore coordinator work`. Shared by both: the background work of a member.

Tested by tests/cluster/test_command_work.py.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from deploy.base.connection import Connection, connection_options
from deploy.base.failures import NEEDS_ATTENTION
from deploy.base.lookup import member_urls
from deploy.base.output import json_option, moment, print_records
from filestore_client import AsyncClient
from filestore_client.base.errors import NotFound

PATH: Final = "/api/v1/work"
_COLUMNS: Final[Mapping[str, Callable[[dict[str, Any]], object]]] = {
    "work": lambda each: f"{each['name']} {each['target']}".rstrip(),
    "worker": lambda each: each["worker"],
    "state": lambda each: each["state"],
    "last": lambda each: moment(each["began_at"]),
    "next": lambda each: moment(each["next_at"]),
    "steps": lambda each: each["steps"],
    "failures": lambda each: each["failures"],
    "in a row": lambda each: each["failures_in_row"],
    "reason": lambda each: each["reason"],
}


@click.command("work")
@click.argument("node_id")
@json_option
@connection_options
def node_work(connection: Connection, node_id: str, as_json: bool) -> int:
    """Show the background work of a node. Admins only.

    The node itself is asked. Exit code 10 when some work of it fails, or some of its workers do not answer.
    """
    return _show(connection, node_id, as_json=as_json)


@click.command("work")
@click.argument("coordinator_id")
@json_option
@connection_options
def coordinator_work(connection: Connection, coordinator_id: str, as_json: bool) -> int:
    """Show the background work of a coordinator. Admins only.

    The coordinator itself is asked. Exit code 10 when some work of it fails.
    """
    return _show(connection, coordinator_id, as_json=as_json)


def _show(connection: Connection, member_id: str, *, as_json: bool) -> int:
    async def ask(client: AsyncClient) -> dict[str, Any]:
        if (url := (await member_urls(client)).get(member_id)) is None:
            raise NotFound(f"There is no member {member_id}.")
        return await client.transport.only(url).call("GET", PATH, dict[str, Any])

    answer = connection.run(ask)
    print_records(answer["work"], _COLUMNS, as_json=as_json, empty="No background work.")
    for worker in answer["silent_workers"]:
        click.echo(f"filestore: worker {worker} of {member_id} does not answer", err=True)
    is_failing = any(each["state"] == "failing" for each in answer["work"])
    return NEEDS_ATTENTION if is_failing or answer["silent_workers"] else 0
