"""A trouble that every request meets: a line when it begins, a line when it ends."""

import asyncio
import errno
import json
import logging
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from ca.errors import FilestoreError
from node.diskio.fs import storage_error
from runtime import logs
from runtime.audit import AuditLog
from runtime.logs import LastingTroubles
from web import responses

_log = logging.getLogger("tests.lasting")
DEADLINE_S = 10.0


async def until(caplog: pytest.LogCaptureFixture, records: int) -> list[logging.LogRecord]:
    async with asyncio.timeout(DEADLINE_S):
        while len(caplog.records) < records:
            await asyncio.sleep(0.01)
    return caplog.records


async def test_trouble_is_told_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    troubles = LastingTroubles(_log, quiet_s=0.1)
    for number in range(100):
        troubles.note("requests are not served", "read-only", request_id=f"r{number}")
    begun, ended = await until(caplog, 2)
    assert (begun.message, begun.__dict__["request_id"]) == ("requests are not served", "r0")
    assert (ended.message, ended.__dict__["count"]) == ("no repetition of this message for 0 s", 100)
    troubles.note("requests are not served", "read-only", request_id="again")
    assert (await until(caplog, 3))[2].__dict__["request_id"] == "again"
    await until(caplog, 4)


async def test_trouble_that_goes_on_does_not_end(caplog: pytest.LogCaptureFixture) -> None:
    troubles = LastingTroubles(_log, quiet_s=0.2)
    for _ in range(20):
        troubles.note("what", "why")
        await asyncio.sleep(0.02)
    assert len(caplog.records) == 1
    troubles.note("what", "another")
    await until(caplog, 4)


@pytest.mark.parametrize("fault", [errno.EROFS, errno.EIO, errno.ENOSPC])
async def test_disk_that_refuses_every_request_is_logged_once_and_told_to_each(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, fault: int
) -> None:
    monkeypatch.setattr(responses, "_TROUBLES", LastingTroubles(responses._log, quiet_s=logs.QUIET_S))
    request, told = make_mocked_request("GET", "/"), []
    for _ in range(50):
        error = responses.error_of(request, storage_error(OSError(fault, "x")))
        told.append(responses.error_body(error, "r"))
    assert len(caplog.records) == 1
    assert "internal" not in json.dumps(caplog.records[0].__dict__, default=str)
    assert all("disk" in each["details"] for each in told)


async def test_other_faults_keep_a_line_for_each_request(caplog: pytest.LogCaptureFixture) -> None:
    request = make_mocked_request("GET", "/")
    for problem in (web.HTTPInternalServerError(), storage_error(OSError(errno.EISDIR, "x"))) * 2:
        assert isinstance(responses.error_of(request, problem), FilestoreError)
    assert [each.message for each in caplog.records] == ["request not served"] * 4


def test_audit_log_that_cannot_be_written_is_such_a_trouble(tmp_path: Path) -> None:
    with pytest.raises(FilestoreError) as raised:
        AuditLog(tmp_path / "missing" / "audit.log").check_writable()
    assert raised.value.lasts
