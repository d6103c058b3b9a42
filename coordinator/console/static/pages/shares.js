// Public links of all files: until when, and to revoke them.
import { html } from "../html.js";
import * as api from "../api.js";
import { counted } from "../format.js";
import { linkColumns, revoke } from "../ui/links.js";
import { useScan } from "../ui/scan.js";
import { DataTable } from "../ui/table.js";
import { Action, Bar, Empty, Heading, Name } from "../ui/parts.js";

const ofFile = async (file, signal) => (await api.list(`files/${file.file_uuid}/public-tokens`, "public_tokens", { signal })).rows;

export function Scanned({ scan, what }) {
  if (!scan.isRunning && scan.looked >= scan.total) return null;
  return html`<div class="scanned" role="status"><span class="quiet">${scan.total === 0 ? `Looking for ${what}` :
      `Looked through ${scan.looked.toLocaleString("en")} of ${counted(scan.total, "file")} for ${what}`}</span>
    <${Bar} value=${scan.looked} max=${scan.total || 1} label="Files looked through" />
    ${!scan.isRunning && html`<button type="button" class="small outline" onClick=${scan.more}>Look through older files</button>`}</div>`;
}

export default function Shares() {
  const scan = useScan(ofFile);
  const columns = [
    { key: "filename", title: "File", value: (l) => l.file.filename, render: (l) =>
      html`<a href="#/file/${l.file_uuid}?kind=${l.file.kind}"><${Name}>${l.file.filename}</${Name}></a>` },
    ...linkColumns.map((column) => (column.key === "expires_at" ? { ...column, hide: "narrow" } : column)),
    { key: "revoke", sortable: false, width: "7rem", small: "6.6rem", align: "end", render: (l) => l.status === "active" &&
      html`<${Action} label="Revoke… (the link to ${l.file.filename})" run=${async () => (await revoke(l.file, l)) && scan.restart()}>Revoke…</${Action}>` },
  ];
  return html`<${Heading} title="Shares" sub="Links by which somebody without an account can download a file." />
    <${Scanned} scan=${scan} what="links" />
    <${DataTable} label="Shares" noun="link" rows=${scan.rows} keyOf=${(l) => l.id} columns=${columns}
      sort=${{ key: "created_at", down: true }} search=${{ label: "Search by file or maker", text: (l) => `${l.file.filename} ${l.created_by}` }}
      filters=${[{ key: "state", title: "State", options: [["active", "active"], ["expired", "expired"], ["revoked", "revoked"]], accept: (l, value) => l.status === value }]}
      isLoading=${scan.isRunning} error=${scan.error} refresh=${scan.restart}
      empty=${html`<${Empty} title="No links.">Open a file and choose Share: the link is for people without an account.</${Empty}>`} />`;
}
