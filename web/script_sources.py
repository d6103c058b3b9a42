"""Which answers of an origin a browser runs as code. Shared by the console, /docs and downloads.

Those of the console and /docs are, file content never is. Users' files are served by the origin of the
console. A file that a page of this origin imports as a script could read the token of that page, so both
sides prevent it. Pure: no I/O here.

Tested by tests/unit/api/console/test_routes.py.
"""

from collections.abc import Mapping
from typing import Final

from ca.errors import Forbidden

# Values of Sec-Fetch-Dest (Fetch standard, section 2.2.5) whose bytes act within the page that loads them.
# Pictures, video, downloads and frames do not: a frame of content has a sandbox of its own.
CODE_DESTINATIONS: Final = frozenset(
    {
        "audioworklet",
        "paintworklet",
        "script",
        "serviceworker",
        "sharedworker",
        "style",
        "worker",
        "xslt",
    }
)


def scripts_of(folder: str) -> str:
    """Return a policy that allows scripts of this folder only ("/console/"), for any host.

    Pages send it together with a policy with `script-src 'self'`. Browsers enforce both, which leaves this
    folder of this origin. A single policy would have to name the host, and none can name an IPv6 address.
    """
    return f"script-src https://*:*{folder} http://*:*{folder}"


def require_no_code(headers: Mapping[str, str]) -> None:
    """Raise Forbidden if a browser asks for content in order to run it within a page."""
    destination = headers.get("Sec-Fetch-Dest", "").lower()
    if destination in CODE_DESTINATIONS:
        raise Forbidden(f"The content of files is not served as {destination}.")
