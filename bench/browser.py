"""An upload by the console in a browser beside `curl -T`: one file to the node of the page, over TLS.

    python -m bench.browser

Chromium has the console's own code send it; its time is that of the PATCH by the browser's own clock. Each
stores three replicas. Both take turns, so that a slow minute touches both; the first pair does not count.
Debian's chromium and libnss3-tools have to be there: `make browser` installs them.
"""

import asyncio
import os
import shutil
from pathlib import Path

from bench.rows import Figure, Row, Skipped, report
from tests.browser.chromium import Browser, Page
from tests.browser.console_pages import open_console, sign_in
from tests.cluster.harness import Cluster

RUNS = 5
FILE_BYTES = int(os.environ.get("BROWSER_MB", "300")) * 1_000_000
RATIO_MIN = 0.8
PROGRAMS = ("chromium", "certutil")


def rows(directory: Path) -> list[Row]:
    """The one row. Raises Skipped where there is no browser."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        raise Skipped(f"there is no {' and no '.join(missing)} here")
    content = directory / "fast.tar"
    content.write_bytes(os.urandom(FILE_BYTES))
    with (
        Cluster(directory / "cluster") as cluster,
        Browser(directory / "browser", root=cluster.ca) as browser,
    ):
        pairs = asyncio.run(_pairs(cluster, browser, content))
    return [Row.compared(f"upload of {FILE_BYTES / 1e6:.0f} MB, browser / curl", "MB/s", RATIO_MIN, pairs)]


async def _pairs(cluster: Cluster, browser: Browser, content: Path) -> list[tuple[Figure, Figure]]:
    async with Page(browser) as page:
        await open_console(page, cluster.nodes[0])
        await sign_in(page, cluster.admin_token)
        await page.send("Network.disable")
        pairs = [
            (await _by_browser(page, content), await asyncio.to_thread(_by_curl, cluster, content))
            for _ in range(RUNS + 1)
        ]
    return pairs[1:]


async def _by_browser(page: Page, content: Path) -> Figure:
    """By the page's own clock: a debugger that listens to the network would cost as much as what it hears."""
    await page.value("performance.clearResourceTimings()")
    await page.drop(content)
    await page.until("document.querySelector('dialog form footer')")
    await page.value("document.querySelector('dialog button[type=submit]').click()")
    await page.until("document.querySelector('.notices')?.textContent.includes('is stored')")
    await page.value("document.querySelector('.notices button').click()")
    found = "performance.getEntriesByType('resource').filter((each) => each.name.endsWith('/content'))"
    longest_ms = await page.value(f"Math.max(...{found}.map((each) => each.responseEnd - each.startTime))")
    return Figure(FILE_BYTES / 1e3 / float(longest_ms))  # that of the PATCH; tus asks by HEAD before


def _by_curl(cluster: Cluster, content: Path) -> Figure:
    file_uuid = cluster.create("fast.tar", size_bytes=FILE_BYTES)["file_uuid"]
    url = f"{cluster.nodes[0].url}/api/v1/files/{file_uuid}/content"
    done = cluster.curl("--silent", "-w", "%{time_total}", "-o", "/dev/null", "-T", str(content), url)
    assert done.returncode == 0, done.stderr
    return Figure(FILE_BYTES / 1e6 / float(done.stdout))


def main() -> None:
    """Print the table and the JSON line."""
    report("browser", RUNS, rows)


if __name__ == "__main__":
    main()
