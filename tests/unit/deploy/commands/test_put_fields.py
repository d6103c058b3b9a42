"""What `filestore put` says of a new record."""

from deploy.commands.files import record_fields

OPTIONS = {
    "project_id": "",
    "content_type": "",
    "retention_period": None,
    "bucket_id": "",
    "is_encrypted": False,
}


def test_fields_that_say_nothing_are_left_out() -> None:
    assert record_fields("a.iso", OPTIONS) == {
        "filename": "a.iso",
        "project_id": "a",
        "content_type": "application/x-iso9660-image",
    }


def test_zero_says_something() -> None:
    assert record_fields("a", OPTIONS | {"retention_period": 0})["retention_period"] == 0
