"""What an administrator reads: events, capacity, links to the runbook, commands for a new machine."""

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from deploy.commands.cluster import setup
from deploy.commands.token import token
from metadata.model.records import DEFAULT_BUCKET_ID
from tests.browser.chromium import Browser, Page
from tests.browser.console_pages import choose, faults, open_console, show, sign_in
from tests.browser.console_world import stored
from tests.cluster.harness import Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
UUID = r"/[0-9a-f]{8}-[0-9a-f]{4}-/"


def card(title: str) -> str:
    """JavaScript: the card with this title."""
    return f"[...document.querySelectorAll('main .card')].find(c => c.textContent.startsWith('{title}'))"


def lines(title: str) -> str:
    """JavaScript: the texts of the lines of a list in this card."""
    items = f"[...{card(title)}?.querySelectorAll('li') ?? []]"
    return items + ".map(e => e.textContent.replace(/\\s+/g, ' ').trim())"


def line(title: str, part: str) -> str:
    """JavaScript: the first of those lines that has this."""
    return f"{lines(title)}.find(e => e.includes({json.dumps(part)}))"


async def test_events_and_history_are_told_in_words(page: Page, cluster: Cluster) -> None:
    owner = cluster.user_token("abel")
    file = stored(cluster, "/backups", b"x", owner, filename="told.tar", backup_type="full")
    patched = cluster.request("PATCH", f"/backups/{file}", body={"filename": "told-2.tar"}, token=owner)
    assert patched.status == 200
    cluster.join_token(node_id="n8")
    assert cluster.request("DELETE", f"/buckets/{DEFAULT_BUCKET_ID}").status == 409
    await page.shape(1440)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, cluster.admin_token)
    await page.until(line("Latest events", "could not delete"))
    refused = await page.value(line("Latest events", "could not delete"))
    assert refused.startswith("admin could not delete bucket …000000 (conflict)")
    made = await page.value(line("Latest events", "join token"))
    assert made.startswith("admin created a join token")
    assert not await page.value(f"{UUID}.test({card('Latest events')}.innerText)")
    await show(page, "#/audit?action=join", "main tbody tr")
    rows = "[...document.querySelectorAll('main tbody tr')]"
    await page.until(f"{rows}.some(tr => /node-3\\s*joined/.test(tr.innerText))")
    assert not await page.value(f"{UUID}.test(document.querySelector('main tbody').innerText)")
    await show(page, f"#/file/{file}?kind=backup", "main .facts")
    await page.until(line("History", "uploaded it"))
    told = await page.value(lines("History"))
    assert told[-1].endswith("abel uploaded it")
    assert told[0].endswith("abel changed")
    assert not faults(page, cluster.nodes[0], told=("409",), asked=cluster.members)


async def test_capacity_is_what_fits_with_all_copies(page: Page, cluster: Cluster) -> None:
    await page.shape(1440)
    await open_console(page, cluster.nodes[0])
    cases = [
        ([100, 100, 100], 3, 100),
        ([100, 100, 100], 2, 150),
        ([1000, 100, 100], 2, 200),  # the large one cannot hold both copies
        ([300, 200, 100], 3, 100),
        ([300, 200, 100], 1, 600),
        ([500, 400, 100, 100], 3, 200),
        ([100], 3, 100),  # as many copies as there are nodes
        ([], 3, 0),
        ([0, 0, 100], 3, 0),
    ]
    module = "[...document.scripts].find(s => s.type === 'module').src.replace('app.js', 'cluster.js')"
    for rooms, copies, bytes_ in cases:
        asked = f"import({module}).then(m => m.usable({json.dumps(rooms)}, {copies}))"
        assert await page.value(asked) == bytes_, (rooms, copies)
    status = cluster.get("/cluster/status").json
    assert status["replicas_wanted"] == 3
    await sign_in(page, cluster.admin_token)
    shown_card = f"{card('Capacity')}?.innerText"
    await page.until(f"{shown_card}?.includes('with 3 copies of each')")
    least = min(node["free_bytes"] for node in status["nodes"])
    shown = f"import({module.replace('cluster.js', 'format.js')}).then(m => m.size({least}))"
    assert await page.value(shown) in await page.value(shown_card)


async def test_commands_for_a_new_machine_are_those_of_setup(
    page: Page, cluster: Cluster, tmp_path: Path
) -> None:
    await page.shape(1440)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, cluster.admin_token)
    for address, button, options in (
        ("#/nodes", "Add a node…", ["--node-only"]),
        ("#/coordinators", "Add a coordinator…", []),
    ):
        await show(page, address, "main tbody tr")
        await choose(page, button)
        await page.until("document.querySelector('dialog [name=address]')")
        await page.click("dialog [name=name]")
        await page.type("m4")
        await page.click("dialog [name=address]")
        await page.type("m4.example.org")
        await choose(page, "Show the commands", "dialog footer")
        await page.until("document.querySelectorAll('dialog pre.command').length === 2")
        told = "[...document.querySelectorAll('dialog pre.command')].map(e => e.textContent)"
        first, second = (shlex.split(command) for command in await page.value(told))
        assert first[:4] == ["sudo", "filestore", "token", "setup"]
        assert second[:4] == ["sudo", "filestore", "setup", "--join"]
        assert second[4:] == ["--name", "m4", "--address", "m4.example.org", *options]
        # The command knows these options; what it lacks is the text.
        refused = CliRunner().invoke(setup, [*second[3:], "--data", str(tmp_path)], input="\n")
        assert refused.exit_code == 2, refused.output
        assert "the text is empty" in refused.output
        assert {"--data"} <= {option for each in token.commands["setup"].params for option in each.opts}
        await choose(page, "Done", "dialog footer")
    assert not faults(page, cluster.nodes[0], asked=cluster.members)


async def test_problem_leads_to_its_section_of_the_runbook(
    programs: None, own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Browser(tmp_path_factory.mktemp("browser"), root=own_cluster.ca) as browser:
        async with Page(browser) as page:
            await page.shape(1440)
            await open_console(page, own_cluster.nodes[0])
            await sign_in(page, own_cluster.admin_token)
            own_cluster.kill(own_cluster.nodes[2])
            told = "main .findings a[href$='at=filestorenodedown']"
            await page.until(f'document.querySelector("{told}")')
            await page.click(told)
            await page.until("location.hash.startsWith('#/help/runbook-nodes?at=filestorenodedown')")
            await page.until("document.activeElement.textContent === 'FilestoreNodeDown'")


async def test_ticket_lasts_as_long_as_a_slow_download(page: Page, cluster: Cluster) -> None:
    token = cluster.user_token("cain")
    file = stored(cluster, "/backups", b"x", token, filename="slow.tar", backup_type="full")
    await open_console(page, cluster.nodes[0])
    await sign_in(page, token)
    for size_bytes, ttl_seconds in ((1, 900), (2_000_000_000, 2000), (10**12, 3600)):
        page.forget()
        record = json.dumps({"file_uuid": file, "filename": "slow.tar", "size_bytes": size_bytes})
        module = "[...document.scripts].find(s => s.type === 'module').src.replace('app.js', 'files.js')"
        await page.value(f"import({module}).then(m => m.download({record}))")
        sent = [event["request"] for event in page.heard("Network.requestWillBeSent")]
        asked = [json.loads(each["postData"]) for each in sent if each["url"].endswith("/ticket")]
        assert asked == [{"ttl_seconds": ttl_seconds}]
