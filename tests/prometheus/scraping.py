"""A Prometheus that scrapes a cluster with our configuration, and what it answers."""

import json
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from deploy.dev_cluster import Member

OURS = Path(__file__).resolve().parent.parent.parent / "deploy" / "prometheus"
SCRAPED_S = 60.0


def targets(members: list[Member]) -> str:
    return json.dumps([f"127.0.0.1:{member.api_port}" for member in members])


def asked(address: str, expression: str) -> list[Any] | None:
    """What Prometheus answers to an expression; None while it does not answer."""
    query = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"{address}/api/v1/query?{query}", timeout=10) as answer:
            found: list[Any] = json.load(answer)["data"]["result"]
            return found
    except (urllib.error.URLError, ConnectionError):
        return None


def rule(address: str, alert: str) -> str:
    """The expression of one of our alerts, as Prometheus has read it."""
    with urllib.request.urlopen(f"{address}/api/v1/rules?type=alert", timeout=10) as answer:
        groups = json.load(answer)["data"]["groups"]
    (found,) = (str(each["query"]) for group in groups for each in group["rules"] if each["name"] == alert)
    return found
