// Exported projects.
import { html } from "../html.js";
import { FileList } from "../ui/file-list.js";
import { Name } from "../ui/parts.js";

const COLUMNS = [
  { key: "project_name", title: "Project", width: "11rem", hide: "medium",
    value: (file) => file.project_name || file.project_id,
    render: (file) => html`<${Name} title=${file.project_id}>${file.project_name || file.project_id}</${Name}>` },
  { key: "version_tag", title: "Version", width: "6rem", hide: "wide",
    render: (file) => html`<${Name}>${file.version_tag}</${Name}>` },
];

export default () => html`<${FileList} kind="project" columns=${COLUMNS} sub="Exported network-emulation projects."
  empty=${html`<p>Export a project in GNS3 (File, Export portable project), then drop the file anywhere on this page.</p>`} />`;
