"""Long lists at every width, and many files at once: what is read stays in sight."""

from pathlib import Path

import pytest

from tests.browser.chromium import Page
from tests.browser.console_pages import choose, closed, faults, open_console, show, sign_in
from tests.browser.folder_pages import told
from tests.browser.test_console_many import create_some
from tests.cluster.harness import Cluster

ROWS = 200  # more than are drawn at once
NAME_PX_MIN = {360: 90, 900: 160, 1280: 160, 1920: 160}
FILES = 30
FILES_MAX = 10_000  # at once, as uploads/tree.js has it
BEYOND = 60
HEAD = "document.querySelector('main thead th:not(.mark)').getBoundingClientRect()"
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


async def test_name_and_heads_of_a_long_list_stay_in_sight_at_every_width(
    page: Page, cluster: Cluster
) -> None:
    token = cluster.user_token("oscar")
    create_some(cluster, token, range(ROWS))
    await page.shape(1280, 800)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, token)
    await show(page, "#/backups", "main tbody tr")
    await page.until(f"document.querySelector('.count').textContent === '{ROWS} backups'")
    for width, name_px_min in NAME_PX_MIN.items():
        await page.shape(width, 800)
        await page.value("scrollTo(0, document.documentElement.scrollHeight / 2)")
        await page.until("document.querySelector('main tr.space') && scrollY > 1000")
        await page.until(f"{HEAD}.width >= {name_px_min}")
        assert 0 <= await page.value(f"{HEAD}.top") < 150, width
        columns = await page.value("document.querySelectorAll('main thead th').length")
        assert await page.value("document.querySelector('main tr.space td').colSpan") == columns, width
    assert not faults(page, cluster.nodes[0])


async def test_names_of_nodes_are_wide_enough_to_be_read(page: Page, cluster: Cluster) -> None:
    await page.shape(1280, 800)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, cluster.admin_token)
    await show(page, "#/nodes", "main tbody tr")
    for width, name_px_min in NAME_PX_MIN.items():
        await page.shape(width, 800)
        await page.until(f"{HEAD}.width >= {name_px_min}")
    assert not faults(page, cluster.nodes[0])


async def test_column_that_fits_beside_a_wide_name_is_shown(page: Page, cluster: Cluster) -> None:
    await page.shape(900, 800)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, cluster.admin_token)
    await show(page, "#/users", "main tbody tr")
    heads = "[...document.querySelectorAll('main thead th')].map((each) => each.textContent.slice(0, 5))"
    await page.until(f"{HEAD}.width >= {NAME_PX_MIN[900]}")
    assert await page.value(heads) == ["User▴", "State", "Roles", "Actio"]
    await page.shape(1280, 800)
    await page.until(f"{heads}.includes('Group')")
    assert not faults(page, cluster.nodes[0])


async def test_many_files_are_a_line_each_of_one_kind_and_end_in_one_notice(
    page: Page, cluster: Cluster, tmp_path: Path
) -> None:
    token = cluster.user_token("peggy")
    files = [tmp_path / f"startup-{number}.cfg" for number in range(FILES)]
    for file in files:
        file.write_text(f"hostname {file.stem}\n")
    await page.shape(900, 700)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, token)
    await show(page, "#/uploads", "input[name=files]")
    await page.give_files("input[name=files]", *files)
    await page.until(f"document.querySelectorAll('dialog .chosen li').length === {FILES}")
    assert await page.value(
        "document.querySelector('dialog [type=submit]').getBoundingClientRect().bottom <= 700"
    )
    await page.value("""(() => {
      const kind = document.querySelector('dialog select');
      kind.value = 'project';
      kind.dispatchEvent(new Event('change', { bubbles: true }));
    })()""")
    await choose(page, "Upload", "dialog footer")
    await closed(page)
    await page.until(f"document.querySelector('.notices').textContent.includes('{FILES} files are stored.')")
    assert await page.value("document.querySelectorAll('.notice').length") == 1
    stored = cluster.get("/project-files", token=token).json["project_files"]
    assert sorted(each["filename"] for each in stored) == sorted(file.name for file in files)
    assert not faults(page, cluster.nodes[0])


async def test_files_beyond_ten_thousand_are_counted(page: Page, cluster: Cluster, tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    for number in range(FILES_MAX + BEYOND):
        file = lab / f"r{number // 100}" / f"{number}.cfg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    await page.shape(900, 700)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, cluster.user_token("pia"))
    await show(page, "#/uploads", "input[name=folder]")
    await page.give_files("input[name=folder]", lab)
    await told(page, f"{BEYOND} files of")
    await told(page, "what you chose are left out")
    await told(page, f"{FILES_MAX:,} files")
    await choose(page, "Cancel", "dialog footer")
    await closed(page)
    assert not faults(page, cluster.nodes[0])
