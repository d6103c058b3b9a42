"""The body of `/healthz` and `/readyz`."""

from typing import Annotated

from msgspec import Meta, Struct


class Health(Struct, frozen=True, kw_only=True):
    """The process answers, or can serve."""

    status: Annotated[
        str,
        Meta(
            description="ok of a process that lives; ready of one that serves; disk_full of one that "
            "serves what it has, while its own disk has no room.",
            examples=["ready"],
            extra_json_schema={"enum": ["ok", "ready", "disk_full"]},
        ),
    ]
