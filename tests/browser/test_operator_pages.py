"""Every page of an administrator, in both themes at every width: nothing juts out, axe-core finds nothing."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from deploy.processes import wait_until
from tests.browser import axe
from tests.browser.chromium import Page
from tests.browser.console_pages import faults, open_console, reshape, show, sign_in
from tests.browser.console_world import stored
from tests.cluster.harness import Cluster
from tests.cluster.test_coordinators import done

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
WIDTHS: Final = (1440, 768, 320)
PAGES: Final = {
    "health": ("#/", "main .health"),
    "nodes": ("#/nodes", "main tbody tr"),
    "node": ("#/nodes/{node}", "main .facts"),
    "coordinators": ("#/coordinators", "main tbody tr"),
    "jobs": ("#/jobs", "main .table-box tbody tr"),
    "run": ("#/jobs/runs/{run}", "main [role=log] p"),
    "snapshots": ("#/snapshots", "main tbody tr"),
    "snapshot": ("#/snapshots/{snapshot}", "main tbody tr"),
    "users": ("#/users", "main tbody tr"),
    "groups": ("#/groups", "main tbody tr"),
    "group": ("#/groups/netlab-2026", "main tbody tr"),
    "sessions of a user": ("#/sessions?user=alice", "main tbody tr"),
    "providers": ("#/providers", "main .card .facts"),
    "audit": ("#/audit", "main tbody tr"),
}


@pytest.fixture(scope="module")
def snapshot_id(cluster: Cluster) -> str:
    """A snapshot with a file."""
    stored(cluster, "/backups", b"kept", cluster.admin_token, filename="kept.tar", backup_type="full")
    done(cluster, "job", "run", "snapshot", "--wait")
    return str(cluster.get("/cluster/snapshots").json["snapshots"][-1]["snapshot_id"])


@pytest.fixture
def provider(cluster: Cluster) -> Iterator[None]:
    """An identity provider, which nobody reaches."""
    body = {
        "issuer": "https://login.uni.example/realms/a-realm-with-a-long-name",
        "client_id": "filestore",
        "client_secret": cluster.remember("s3cret-of-nobody"),
        "allowed_groups": ["netlab", "staff"],
    }
    answer = cluster.request("PUT", "/auth/providers/uni", body=body)
    assert answer.status == 200, answer.body
    yield
    assert cluster.request("DELETE", "/auth/providers/uni").status == 200


@pytest.fixture(scope="module")
def run_id(cluster: Cluster) -> str:
    """A run that has ended; and what else the pages show."""
    cluster.user_token("alice", groups=["students"], roles=["teacher"])
    cluster.request("PUT", "/groups/netlab-2026", body={"description": "Network lab, winter 2026"})
    cluster.post("/groups/netlab-2026/members", {"user_ids": ["alice"]})
    cluster.join_token(node_id="node-9")
    begun = cluster.post("/jobs/scrub")
    assert begun.status == 202, begun.body
    path = f"/jobs/runs/{begun.json['run_id']}"
    wait_until(lambda: cluster.get(path).json["status"] == "completed", what="the run", timeout_s=60)
    return str(begun.json["run_id"])


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_page_is_usable_in_both_themes_at_every_width(
    page: Page,
    cluster: Cluster,
    run_id: str,
    snapshot_id: str,
    provider: None,
    axe_script: str,
    theme: str,
) -> None:
    found = []
    await page.shape(1440, theme=theme)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, cluster.admin_token)
    for name, (address, selector) in PAGES.items():
        await page.shape(1440, theme=theme)
        ids = {"node": cluster.nodes[0].id, "run": run_id, "snapshot": snapshot_id}
        await show(page, address.format(**ids), selector)
        for width in WIDTHS:
            await reshape(page, width, theme)
            if directory := os.environ.get("FILESTORE_SCREENSHOTS"):
                await page.screenshot(Path(directory) / f"{name}-{theme}-{width}.png")
            if await page.value("document.documentElement.scrollWidth > innerWidth"):
                found.append(f"{name}: wider than {width} px")
            lines = await axe.violations(page, axe_script)
            found += [f"{name}: {width} px, {theme}: {line}" for line in lines]
    assert not found
    assert not faults(page, cluster.nodes[0], asked=cluster.members)
