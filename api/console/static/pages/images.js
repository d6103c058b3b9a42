// Disk images of virtual machines.
import { html } from "../html.js";
import { FileList } from "../ui/file-list.js";
import { VIRT_TYPES } from "../uploads/form.js";

const COLUMNS = [
  { key: "virt_type", title: "Runs in", width: "6.5rem", hide: "medium" },
  { key: "format", title: "Format", width: "6rem", hide: "narrow" },
  { key: "vcpus", title: "CPUs", width: "4.8rem", align: "end", hide: "wide" },
  { key: "ram_mb", title: "Memory", width: "6.5rem", align: "end", hide: "wide", render: (f) => `${f.ram_mb.toLocaleString("en")} MB` },
];
const NARROWING = [
  { key: "virt_type", title: "Runs in", options: VIRT_TYPES.map((t) => [t, t]), accept: (f, value) => f.virt_type === value },
];

export default () => html`<${FileList} kind="image" columns=${COLUMNS} narrowing=${NARROWING}
  sub="Disk images that projects need." empty=${html`<p>Drop a qcow2, vmdk, vdi, vhdx, iso or raw image anywhere on
  this page: its format is found out.</p>`} />`;
