"""The nodes: real ones that keep contents. They join with tokens, by the command of the operator."""

import asyncio
import os
import subprocess
from collections.abc import Sequence

from metadata.model.records import Caller
from tests.chaos.access import Access, new_token, running
from tests.chaos.members import REPLICAS, Member

NODE_NAMES = tuple(f"n{number}" for number in range(1, REPLICAS + 1))
JOIN_TIMEOUT_S = 30.0
JOIN_TRIES = 5  # the coordinators have just started


async def join_nodes(nodes: Sequence[Member], coordinator: Member, access: Access, caller: Caller) -> None:
    """Let them join, at this coordinator. Raises OSError, FilestoreError."""
    root_pem = access.contexts.credential.root_pem
    async with running(access.client()) as metadata:
        tokens = [(await new_token(metadata, caller, root_pem, node.id)).text for node in nodes]
    await asyncio.gather(
        *(asyncio.to_thread(_join, *each, coordinator.url) for each in zip(nodes, tokens, strict=True))
    )


def _join(node: Member, token: str, url: str) -> None:
    """As a machine does: again if it was not answered. Blocking."""
    node.prepare()
    options = ("--id", node.id, "--coordinator", url, "--token-file", "-", "--address", node.address)
    ports = ("--api-port", str(node.api_port), "--peer-port", str(node.peer_port))
    for _ in range(JOIN_TRIES):
        done = subprocess.run(
            node.filestore("join", *options, *ports),
            input=token.encode(),
            capture_output=True,
            env=os.environ | node.environment,
            timeout=JOIN_TIMEOUT_S,
            check=False,
        )
        if done.returncode == 0:
            return
    raise OSError(f"{node.id} could not join: {done.stderr.decode(errors='replace')[-400:]}")
