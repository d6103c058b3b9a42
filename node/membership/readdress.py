"""A stopped node of which the log knows a new address: its certificate for that, and its configuration.

Each step can be said again after a crash: until node.json says the new address, a start of the node fails.
"""

import asyncio

import msgspec

from coordinator.rpc.client import MetadataClient
from coordinator.rpc.roster import read_known
from coordinator.rpc.tls_contexts import MemberContexts
from node.base.config import NodeConfig, NodeFiles
from node.membership.renewal import renew


async def take_address(files: NodeFiles, config: NodeConfig, address: str) -> None:
    """Renew its certificate for this address over its own connection, then write node.json.

    Raises UnusableCredential, and what the coordinators refuse with.
    """
    contexts = MemberContexts(files.credential(), config.identity)
    coordinators = read_known(files.known, config.coordinators)
    metadata = MetadataClient(config.identity, coordinators, contexts.client)
    running = asyncio.create_task(metadata.run(), name="metadata client")
    try:
        await renew(metadata, contexts, config.identity, address)
    finally:
        running.cancel()
        await asyncio.wait([running])
    files.write_config(msgspec.structs.replace(config, address=address))
