"""The bodies of `/healthz`, `/readyz` and `/metrics/targets`."""

from typing import Annotated

from msgspec import Meta, Struct

from runtime.version import VERSION


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
    version: Annotated[str, Meta(description="Of the product, of this process.", examples=["0.1.0"])] = (
        VERSION
    )


class ScrapeTargets(Struct, frozen=True, kw_only=True):
    """Processes that answer `/metrics`, as Prometheus takes them (`http_sd_configs`)."""

    targets: Annotated[list[str], Meta(description="Address and port of each.", examples=[["10.0.0.1:7443"]])]
    labels: Annotated[dict[str, str], Meta(description="Labels that all of them get: none.", examples=[{}])]
