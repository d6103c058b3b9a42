// Public links: those that one made or that are on one's files; for administrators all. Until when, and to revoke them.
import { html } from "../html.js";
import * as api from "../api.js";
import { fileAddress } from "../files.js";
import { path } from "../path.js";
import { linkColumns, revoke } from "../ui/links.js";
import { DataTable } from "../ui/table.js";
import { Action, Empty, Heading, Name } from "../ui/parts.js";

export default function Shares() {
  const list = api.useList(path`public-tokens`, "public_tokens");
  const columns = [
    { key: "filename", title: "File", render: (l) => html`<a href=${fileAddress(l)}><${Name}>${l.filename}</${Name}></a>` },
    ...linkColumns.map((column) => (column.key === "expires_at" ? { ...column, hide: "narrow" } : column)),
    { key: "revoke", sortable: false, width: "7rem", small: "6.6rem", align: "end", render: (l) => l.status === "active" &&
      html`<${Action} label="Revoke… (the link to ${l.filename})" run=${async () => (await revoke(l, l)) && list.refresh()}>Revoke…</${Action}>` },
  ];
  return html`<${Heading} title="Shares" sub="Links that let people without an account download a file." />
    <${DataTable} label="Shares" noun="link" rows=${list.rows} keyOf=${(l) => l.id} columns=${columns}
      sort=${{ key: "created_at", down: true }} search=${{ label: "Search by file or maker", text: (l) => `${l.filename} ${l.created_by}` }}
      filters=${[{ key: "state", title: "State", options: [["active", "active"], ["expired", "expired"], ["revoked", "revoked"]], accept: (l, value) => l.status === value }]}
      isLoading=${list.isLoading} error=${list.error} refresh=${list.refresh}
      empty=${html`<${Empty} title="No links.">Open a file and choose Share: the link is for people without an account.</${Empty}>`} />`;
}
