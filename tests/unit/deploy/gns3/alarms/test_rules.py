"""The cases of the rules, which tests/browser/test_console_labs.py has the console decide too."""

from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deploy.gns3.alarms.rules import CheckReport, RunReport, alarms_of

CASES: list[dict[str, Any]] = msgspec.json.decode((Path(__file__).parent / "cases.json").read_bytes())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_alarms_are_those_of_the_case(case: dict[str, Any]) -> None:
    run = msgspec.convert(case["run"], RunReport) if "run" in case else None
    check = msgspec.convert(case["check"], CheckReport) if "check" in case else None
    now_s = datetime.fromisoformat(case["now"]).timestamp()
    found = alarms_of(run, check, case.get("newest", []), now_s=now_s)
    assert [[each.code, each.project_id, each.text, each.since] for each in found] == case["expected"]
