"""/docs in a browser, on a node and on a coordinator: complete, usable, and sufficient to itself."""

import json
from typing import Any

import pytest

from api.documentation import DOCUMENT_PATH
from deploy.dev_cluster import Member
from tests.browser.chromium import Page
from tests.cluster.harness import Cluster

OPERATIONS_MIN = 30  # of a coordinator; fewer would mean that the document is not what it was
# Every operation in turn is opened, and its whole description resolved: a second or two for each.
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
OPENED = """(() => {
  const block = document.getElementById(%s);
  const texts = selector => [...block.querySelectorAll(selector)];
  return {
    method: block.querySelector('.opblock-summary-method').textContent.toLowerCase(),
    path: block.querySelector('.opblock-summary-path').dataset.path,
    statuses: texts('tr.response').map(row => row.dataset.code),
    parameters: texts('tr[data-param-name]').map(row => row.dataset.paramName),
    hasBody: block.querySelector('.opblock-section-request-body') !== null,
  };
})()"""
FAULTS = """[...document.querySelectorAll('.errors-wrapper')].map(box => box.textContent).concat(
  document.body.textContent.match(/Could not render.{0,60}/g) || [])"""


@pytest.fixture(params=["node", "coordinator"])
def member(cluster: Cluster, request: pytest.FixtureRequest) -> Member:
    return (cluster.nodes if request.param == "node" else cluster.coordinators)[0]


@pytest.fixture
async def shown(page: Page, member: Member) -> Page:
    """The page, with the operations of every tag listed."""
    await page.open(f"{member.url}/docs")
    await page.until("document.querySelector('.opblock-tag')")
    await page.value("document.querySelectorAll('.opblock-tag').forEach(tag => tag.click())")
    await page.until("!document.querySelector('.opblock-tag-section:not(.is-open)')")
    return page


def described(cluster: Cluster, member: Member) -> dict[str, dict[str, Any]]:
    """What the page should show of each operation, by the id of its block."""
    document = cluster.request("GET", f"{member.url}{DOCUMENT_PATH}", token=None).json
    return {
        f"operations-{operation['tags'][0].replace(' ', '_')}-{operation['operationId']}": {
            "method": method,
            "path": path,
            "statuses": sorted(operation["responses"]),
            "parameters": sorted(parameter["name"] for parameter in operation.get("parameters", [])),
            "hasBody": "requestBody" in operation,
        }
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def block(identifier: str, selector: str) -> str:
    """JavaScript that finds something in the block of an operation."""
    return f"document.getElementById({json.dumps(identifier)}).querySelector('{selector}')"


async def toggle(page: Page, identifier: str) -> None:
    """Open an operation that is closed, or close it; it is rendered when this returns."""
    opens = not await page.value(f"Boolean({block(identifier, '.opblock-body')})")
    await page.value(f"{block(identifier, '.opblock-summary-control')}.click()")
    await page.until(f"{'' if opens else '!'}{block(identifier, '.responses-wrapper')}")


def assert_sufficient_to_itself(page: Page, member: Member) -> None:
    assert page.complaints() == []
    assert [url for url in page.requested() if not url.startswith(f"{member.url}/")] == []


async def test_every_operation_is_shown_whole(cluster: Cluster, member: Member, shown: Page) -> None:
    expected = described(cluster, member)
    assert len(expected) >= OPERATIONS_MIN
    listed = await shown.value("[...document.querySelectorAll('.opblock')].map(block => block.id)")
    assert sorted(listed) == sorted(expected)
    for identifier in listed:
        await toggle(shown, identifier)
        seen = await shown.value(OPENED % json.dumps(identifier))
        seen |= {name: sorted(seen[name]) for name in ("statuses", "parameters")}
        assert seen == expected[identifier]
        assert await shown.value(FAULTS) == []
        await toggle(shown, identifier)
    assert_sufficient_to_itself(shown, member)


async def test_operation_can_be_tried_with_a_credential(
    cluster: Cluster, member: Member, shown: Page
) -> None:
    await shown.value("document.querySelector('.btn.authorize').click()")
    form = "[...document.querySelectorAll('.auth-container')].find(f => /user_token/.test(f.textContent))"
    await shown.until(form)
    await shown.value(f"{form}.querySelector('input').focus()")
    await shown.send("Input.insertText", text=f"Bearer {cluster.user_token('browser-reader')}")
    await shown.value(f"{form}.querySelector('button.authorize').click()")
    await shown.until(f"{form}.querySelector('button:not(.authorize):not(.btn-done)')")  # Logout
    await shown.value("document.querySelector('.btn-done').click()")
    identifier = "operations-Users-whoami"
    await toggle(shown, identifier)
    await shown.value(f"{block(identifier, '.try-out__btn')}.click()")
    await shown.until(block(identifier, ".execute"))
    await shown.value(f"{block(identifier, '.execute')}.click()")
    answer = ".live-responses-table .response"
    await shown.until(block(identifier, answer))
    row = await shown.value(f"{block(identifier, answer)}.textContent")
    assert row.startswith("200")
    assert '"user_id": "browser-reader"' in row
    assert_sufficient_to_itself(shown, member)


async def test_policy_is_enforced_and_what_it_blocks_is_noticed(shown: Page, member: Member) -> None:
    """Otherwise the absence of complaints would mean nothing."""
    assert_sufficient_to_itself(shown, member)
    style = "const e = document.createElement('style'); e.textContent = 'p {}'; document.body.append(e)"
    attempts = {
        "img-src": "new Image().src = 'https://elsewhere.invalid/x.png'",
        "connect-src": "fetch('https://elsewhere.invalid/').catch(() => 0)",
        "script-src-elem": "import('https://elsewhere.invalid/x.js').catch(() => 0)",
        "style-src-elem": style,
        "require-trusted-types-for": "try { document.createElement('script').src = 'x' } catch {}",
    }
    for directive, attempt in attempts.items():
        await shown.value(f"{{ {attempt}; 0 }}")
        await shown.blocked(directive)
    assert list(dict.fromkeys(shown.violated())) == list(attempts)  # two policies may tell of one
    assert len(shown.complaints()) > len(attempts)  # the console tells of them too
