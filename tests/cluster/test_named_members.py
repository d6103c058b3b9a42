"""Members whose address is a DNS name: certificates for it, dialled by it, told to clients."""

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from ca.tls import client_context
from coordinator.admin.setup import init_cluster, mint_admin_token
from deploy.processes import Child, free_ports, is_ready, start_child, stop_children, wait_until
from filestore_client import AsyncClient
from metadata.model.records import CoordinatorRecord
from node.membership.join import join
from web.listener import EVERYWHERE, listening_socket, place_of

NAME = "localhost"


class Named:
    """A coordinator and two nodes of one machine, which is known by its name alone."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.peer, self.api, *self.ports = free_ports(6)
        self.coordinator = directory / "c1"
        record = CoordinatorRecord(coordinator_id="c1", address=NAME, peer_port=self.peer, api_port=self.api)
        init_cluster(
            self.coordinator,
            coordinator_id="c1",
            cluster="lab",
            members=[record],
            replicas=2,
            write_quorum=2,
            development=True,
        )
        self.root_pem = (self.coordinator / "ca.pem").read_text()
        self.children: list[Child] = []

    def start(self, role: str, data: Path, port: int) -> None:
        log = self.directory / f"{data.name}.log"
        child = start_child(role, [role, "run", "--data", str(data)], log)
        self.children.append(child)
        context = client_context(self.root_pem)
        wait_until(lambda: is_ready(port, context, host=NAME), what=role, timeout_s=60, watched=[child])

    async def add_node(self, number: int) -> None:
        api_port, peer_port = self.ports[2 * number - 2 : 2 * number]
        data = self.directory / f"n{number}"
        async with self.client(self.api) as client:
            minted = await client.join_tokens.create(node_id=data.name)
        await join(
            data,
            token=minted.token,
            node_id=data.name,
            coordinator_url=f"https://{NAME}:{self.api}",
            address="LocalHost",
            api_port=api_port,
            peer_port=peer_port,
        )
        await asyncio.to_thread(self.start, "node", data, api_port)

    def client(self, port: int) -> AsyncClient:
        token = mint_admin_token(self.coordinator)
        return AsyncClient(f"https://{NAME}:{port}", root_pem=self.root_pem, token=token)


@pytest.mark.long
async def test_members_with_names_hold_copies_and_tell_their_names(tmp_path: Path) -> None:
    named, content = Named(tmp_path), os.urandom(100_000)
    source, target = tmp_path / "content", tmp_path / "copy"
    source.write_bytes(content)
    try:
        await asyncio.to_thread(named.start, "coordinator", named.coordinator, named.api)
        await named.add_node(1)
        await named.add_node(2)
        async with named.client(named.ports[0]) as client:
            file = await client.files.upload(source, kind="project", project_id="p")
            body = {"filename": "a", "project_id": "p"}
            made = await client.call("POST", "/api/v1/project-files", dict[str, Any], body=body)
            assert made["upload_url"].split("/")[2] in [f"{NAME}:{port}" for port in named.ports[::2]]
            targets = await client.call("GET", "/metrics/targets", list[dict[str, Any]])
            assert f"{NAME}:{named.api}" in targets[0]["targets"]
        async with named.client(named.ports[2]) as client:
            await client.files.download(file.file_uuid, target)
        assert target.read_bytes() == content
    finally:
        await asyncio.to_thread(stop_children, named.children)


async def test_machine_with_a_name_listens_at_all_its_addresses_and_localhost_on_loopback() -> None:
    """Debian's /etc/hosts takes a machine's own name for 127.0.1.1, where nobody else would find it."""
    assert place_of("files1.lab.example", 7443) == (socket.AF_INET6, (EVERYWHERE, 7443))
    assert place_of("10.0.0.1", 7443) == (socket.AF_INET, ("10.0.0.1", 7443))
    assert place_of("fd00::1", 7443) == (socket.AF_INET6, ("fd00::1", 7443))
    listening = await listening_socket(NAME, 0)
    assert listening.getsockname()[0] == "127.0.0.1"
    listening.close()
