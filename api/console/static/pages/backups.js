// Backups: whatever is neither a project nor an image.
import { html } from "../html.js";
import { FileList } from "../ui/file-list.js";
import { Name } from "../ui/parts.js";

const COLUMNS = [
  { key: "backup_type", title: "Type", width: "7.5rem", hide: "medium" },
  { key: "source_node_id", title: "Made on", width: "8rem", hide: "wide", render: (f) => html`<${Name}>${f.source_node_id}</${Name}>` },
];
const NARROWING = [
  { key: "type", title: "Type", options: [["full", "full"], ["incremental", "incremental"]], accept: (f, value) => f.backup_type === value },
];

export default () => html`<${FileList} kind="backup" columns=${COLUMNS} narrowing=${NARROWING}
  sub="Archives of machines and servers, and all other files that are neither projects nor images."
  empty=${html`<p>Drop any file here. If it is neither a project nor a disk image, it is stored as a backup.</p>`} />`;
