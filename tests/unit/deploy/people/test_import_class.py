"""What the import of a class decides without a cluster."""

from datetime import UTC, datetime

from deploy.people.import_class import is_open
from filestore_client.base.records import ListedInvitation

AT_S = datetime(2026, 11, 29, tzinfo=UTC).timestamp()


def test_link_that_was_used_or_has_expired_is_not_open() -> None:
    open_one = ListedInvitation(
        user_id="ann", created_by="admin", created_at="", expires_at="2026-11-29T00:00:00.001Z", used_at=""
    )
    assert is_open(open_one, AT_S)
    assert not is_open(open_one, AT_S + 0.001)
    used = ListedInvitation(
        user_id="ann",
        created_by="admin",
        created_at="",
        expires_at="2026-12-29T00:00:00.000Z",
        used_at="2026-11-28T00:00:00.000Z",
    )
    assert not is_open(used, AT_S)
