"""Debian's Chromium without a window, driven over the Chrome DevTools protocol.

It reaches loopback only, and verifies certificates as always: the one root that it is given is installed in
its NSS database, as a user would. What a page complains of, and asks the network for, is collected.
"""

import asyncio
import base64
import contextlib
import itertools
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from deploy.processes import LOOPBACK, wait_until

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
REACTION_TIMEOUT_S = 60.0
POLL_S = 0.05
MESSAGE_BYTES_MAX = 64 << 20
SWITCHES = (
    "--headless",
    "--remote-debugging-port=0",
    f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE {LOOPBACK}",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--no-first-run",
    "--password-store=basic",
)
Event = dict[str, Any]


class Browser:
    """The process. Use as a context manager."""

    def __init__(self, directory: Path, *, root: Path) -> None:
        self._directory = directory
        self._root = root

    def __enter__(self) -> Self:
        self._install_root()
        profile = self._directory / "profile"
        # Its sandbox refuses to work for root; what it opens here is our own.
        unboxed = ["--no-sandbox"] if os.geteuid() == 0 else []
        with (self._directory / "chromium.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["chromium", *SWITCHES, *unboxed, f"--user-data-dir={profile}", "about:blank"],
                env=os.environ | {"HOME": str(self._directory)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        try:
            self.endpoint = self._wait_endpoint(profile / "DevToolsActivePort")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _install_root(self) -> None:
        database = self._directory / ".pki" / "nssdb"
        database.mkdir(parents=True)
        for arguments in (
            ["-N", "--empty-password"],
            ["-A", "-n", "root", "-t", "C,,", "-i", str(self._root)],
        ):
            subprocess.run(["certutil", "-d", f"sql:{database}", *arguments], check=True, timeout=30)

    def _wait_endpoint(self, file: Path) -> str:
        """Where it listens for the protocol: the file has the port, and a path that nobody can guess."""

        def is_told() -> bool:
            assert self._process.poll() is None, (self._directory / "chromium.log").read_text()[-2000:]
            return file.exists() and file.read_text().count("\n") >= 1

        wait_until(is_told, what="the browser", timeout_s=START_TIMEOUT_S)
        port, path = file.read_text().split()
        return f"ws://{LOOPBACK}:{port}{path}"

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Page:
    """One tab, in a profile of its own or in that of another tab. Use as an asynchronous context manager."""

    def __init__(self, browser: Browser, *, beside: "Page | None" = None) -> None:
        self._endpoint = browser.endpoint
        self.profile: str = "" if beside is None else beside.profile
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._session_id = ""
        self.events: list[tuple[str, Event]] = []

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            http = await stack.enter_async_context(aiohttp.ClientSession())
            self._socket = await http.ws_connect(self._endpoint, max_msg_size=MESSAGE_BYTES_MAX)
            stack.push_async_callback(self._socket.close)
            reading = asyncio.create_task(self._read())
            stack.push_async_callback(_cancelled, reading)
            if not self.profile:
                context = await self.send("Target.createBrowserContext", disposeOnDetach=True)
                self.profile = context["browserContextId"]
            target = await self.send("Target.createTarget", url="about:blank", browserContextId=self.profile)
            attached = await self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
            self._session_id = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
                await self.send(f"{domain}.enable")
            await self.send("Page.setLifecycleEventsEnabled", enabled=True)
            # As if somebody looked at each tab: one in the background takes no keys, and polls nothing.
            await self.send("Emulation.setFocusEmulationEnabled", enabled=True)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def send(self, method: str, **parameters: Any) -> Any:
        """One command, to the browser for the domains `Target` and `Browser`, else to the tab."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if not method.startswith(("Target.", "Browser.")):
            message["sessionId"] = self._session_id
        coming = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json(message)
        async with asyncio.timeout(REACTION_TIMEOUT_S):
            answer = await coming
        assert "error" not in answer, (method, answer)
        return answer["result"]

    async def _read(self) -> None:
        async for received in self._socket:
            message = json.loads(received.data)
            if "id" in message:
                coming = self._answers.pop(message["id"])
                if not coming.done():  # nobody waits any more
                    coming.set_result(message)
            else:
                self.events.append((message["method"], message["params"]))

    def heard(self, name: str) -> list[Event]:
        """The events of this name so far, oldest first."""
        return [event for found, event in self.events if found == name]

    async def event(self, name: str, accept: Callable[[Event], bool] | None = None) -> Event:
        """The first event of this name, come or to come; the first that is accepted."""
        async with asyncio.timeout(REACTION_TIMEOUT_S):
            while not (found := [event for event in self.heard(name) if accept is None or accept(event)]):
                await asyncio.sleep(POLL_S)
        return found[0]

    async def open(self, url: str) -> None:
        """Show a page, and wait until it is loaded."""
        answer = await self.send("Page.navigate", url=url)
        assert "errorText" not in answer, answer
        if "loaderId" not in answer:
            return  # another place in the same document
        loader_id = answer["loaderId"]
        await self.event(
            "Page.lifecycleEvent",
            lambda event: (event["name"], event["loaderId"]) == ("load", loader_id),
        )

    async def reload(self) -> None:
        """Load the page again, and wait until it is loaded: questions to the old one are lost with it."""
        known = {event["loaderId"] for event in self.heard("Page.lifecycleEvent")}
        await self.send("Page.reload")
        await self.event(
            "Page.lifecycleEvent",
            lambda event: event["name"] == "load" and event["loaderId"] not in known,
        )

    async def markup(self) -> str:
        """The document as it stands now; no script of the page has a part in that."""
        document = await self.send("DOM.getDocument")
        found = await self.send("DOM.getOuterHTML", nodeId=document["root"]["nodeId"])
        return str(found["outerHTML"])

    async def value(self, expression: str) -> Any:
        """What a JavaScript expression yields in the page, as JSON."""
        answer = await self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true in the page."""
        async with asyncio.timeout(REACTION_TIMEOUT_S):
            while not await self.value(f"Boolean({expression})"):
                await asyncio.sleep(POLL_S)

    async def shape(self, width: int, height: int = 900, *, theme: str = "light") -> None:
        """A window of this size, and what the system says of colours. Nothing moves: all is final at once."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": theme}
        motion = {"name": "prefers-reduced-motion", "value": "reduce"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme, motion])

    async def screenshot(self, file: Path, *, whole: bool = False) -> None:
        """A picture of the window, or of all of the page: PNG, or WebP by the name."""
        answer = await self.send(
            "Page.captureScreenshot",
            format="webp" if file.suffix == ".webp" else "png",
            captureBeyondViewport=whole,
        )
        file.write_bytes(base64.b64decode(answer["data"]))

    async def click(self, selector: str) -> None:
        """Click where the first element of this selector is, as a hand would, once it is there.

        It has to stay in its place for two frames, and nothing else may lie on it.
        """
        x, y = await self._place_of(selector)
        for kind in ("mousePressed", "mouseReleased"):
            await self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def _place_of(self, selector: str) -> tuple[float, float]:
        place = f"""(async () => {{
          const found = document.querySelector({json.dumps(selector)});
          if (!found) return null;
          found.scrollIntoView({{ block: "center", behavior: "instant" }});
          const box = found.getBoundingClientRect();
          await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
          const later = found.getBoundingClientRect();
          const moved = ["left", "top", "width", "height"].some((each) => box[each] !== later[each]);
          if (moved || !later.width) return null;
          const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
          const hit = document.elementFromPoint(x, y);
          return hit && (found.contains(hit) || hit.contains(found)) ? [x, y] : null;
        }})()"""
        async with asyncio.timeout(REACTION_TIMEOUT_S):
            while (found := await self.value(place)) is None:
                await asyncio.sleep(POLL_S)
        return found[0], found[1]

    async def type(self, text: str) -> None:
        """Type into what has the focus."""
        await self.send("Input.insertText", text=text)

    async def press(self, key: str, code: int = 0) -> None:
        """Press and release a key by its name; `code` is its Windows virtual key code."""
        named: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        written = {"type": "keyDown", "text": "\r"} if key == "Enter" else {"type": "rawKeyDown"}
        await self.send("Input.dispatchKeyEvent", **named, **written)
        await self.send("Input.dispatchKeyEvent", **named, type="keyUp")

    async def drop(self, *files: Path, x: int = 300, y: int = 300) -> None:
        """Drop files of this machine onto the page."""
        data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            await self.send("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    async def give_files(self, selector: str, *files: Path) -> None:
        """Choose files in the file input of this selector."""
        found = await self.send(
            "Runtime.evaluate", expression=f"document.querySelector({json.dumps(selector)})"
        )
        await self.send(
            "DOM.setFileInputFiles", objectId=found["result"]["objectId"], files=[str(file) for file in files]
        )

    def forget(self) -> None:
        """Leave what was heard so far behind."""
        self.events.clear()

    def complaints(self) -> list[str]:
        """Errors and warnings on the console, failed requests, and violations of a policy."""
        told = [
            f"console: {event['type']}: {[part.get('value') for part in event['args']]}"
            for event in self.heard("Runtime.consoleAPICalled")
            if event["type"] in {"error", "warning", "assert"}
        ]
        told += [f"uncaught: {event['exceptionDetails']}" for event in self.heard("Runtime.exceptionThrown")]
        told += [
            f"{entry['source']}: {entry['text']} {entry.get('url', '')}"
            for entry in (event["entry"] for event in self.heard("Log.entryAdded"))
            if entry["level"] in {"error", "warning"}
        ]
        return told + [f"policy: {violation}" for violation in self.violations()]

    def violations(self) -> list[Event]:
        """What the Content-Security-Policy of a page has blocked, as Chromium describes it."""
        issues = [event["issue"] for event in self.heard("Audits.issueAdded")]
        return [
            issue["details"]["contentSecurityPolicyIssueDetails"]
            for issue in issues
            if issue["code"] == "ContentSecurityPolicyIssue"
        ]

    async def blocked(self, directive: str) -> None:
        """Wait until a policy has blocked something by this directive."""
        async with asyncio.timeout(REACTION_TIMEOUT_S):
            while directive not in self.violated():
                await asyncio.sleep(POLL_S)

    def violated(self) -> list[str]:
        """The directives of those policies, in order."""
        return [str(violation["violatedDirective"]) for violation in self.violations()]

    def requested(self) -> list[str]:
        """The addresses that were asked for.

        What a page holds in itself (`data:`) is not, nor is what a policy has blocked.
        """
        blocked = {
            event["requestId"]
            for event in self.heard("Network.loadingFailed")
            if event.get("blockedReason") == "csp"
        }
        sent = self.heard("Network.requestWillBeSent")
        urls = [str(event["request"]["url"]) for event in sent if event["requestId"] not in blocked]
        return [url for url in urls if not url.startswith("data:")]


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
