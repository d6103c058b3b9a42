"""The command of partial uploads; a file that is put together from them is created as any (`files`)."""

from coordinator.model.bounds import Count, NodeIds, Text
from coordinator.model.records import Caller
from coordinator.protocol.commands.root import Command


class CreatePartial(Command, frozen=True, kw_only=True, tag="create_partial"):
    """A partial upload (tus concatenation): bytes that are no file, and become a part of one.

    Nobody but the caller finds it. Needs what a file in the bucket needs, whose quota counts it. Replies with
    an UploadRecord.
    """

    caller: Caller
    file_uuid: Text
    bucket_id: Text
    size_bytes: Count | None
    placement: NodeIds = []  # stamped by the leader, as in CreateFile
