"""VM images, declared as a kind of file: `/api/v1/vms`. Apart from the operations that all kinds share."""

from typing import Final

from api.bodies.vms import CHECKS, FILTER_CHECKS, CreateVmBody, UpdateVmBody, VmBody, VmFilter, VmList
from api.file_kinds import FileKind
from api.file_operations import operations
from api.spec.operation import Operation
from metadata.model.records import VM, VmPage, VmRecord
from metadata.protocol.commands import CreateVm, UpdateVm
from metadata.protocol.queries import GetVm, ListVms

KIND: Final = FileKind(
    name=VM,
    path="/api/v1/vms",
    tag="VM images",
    noun="VM image",
    metadata="image metadata",
    create_body=CreateVmBody,
    update_body=UpdateVmBody,
    body=VmBody,
    list_body=VmList,
    list_filter=VmFilter,
    create_command=CreateVm,
    update_command=UpdateVm,
    get_query=GetVm,
    list_query=ListVms,
    record=VmRecord,
    page=VmPage,
    checks=CHECKS,
    filter_checks=FILTER_CHECKS,
)
OPERATIONS: Final[tuple[Operation, ...]] = operations(KIND)
