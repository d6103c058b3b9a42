// Public links of one file: which there are, until when; to make and to revoke.
import { html } from "../html.js";
import * as api from "../api.js";
import { share } from "../files.js";
import { fileAt, path } from "../path.js";
import { confirm } from "./dialog.js";
import { DataTable } from "./table.js";
import { Action, Badge, Empty, Name, Time } from "./parts.js";
import { notify } from "./toast.js";

export async function revoke(file, link) {
  let isDone = false;
  await confirm({
    title: "Revoke this link?",
    names: [file.filename],
    text: "The link stops working. Downloads that are running continue to their end.",
    action: "Revoke",
    run: async () => {
      await api.del(path`${fileAt(link.file_uuid)}/public-tokens/${link.id}`);
      isDone = true;
    },
  });
  if (isDone) notify("The link is revoked.", "good");
  return isDone;
}

export const linkColumns = [
  { key: "status", title: "State", width: "6.5rem", small: "4.8rem", render: (l) => html`<${Badge} state=${l.status} />` },
  { key: "expires_at", title: "Ends", width: "8rem", small: "5.4rem", render: (l) => html`<${Time} at=${l.expires_at} />` },
  { key: "created_at", title: "Made", width: "8rem", hide: "narrow", render: (l) => html`<${Time} at=${l.created_at} />` },
  { key: "created_by", title: "By", width: "8rem", hide: "medium", render: (l) => html`<${Name}>${l.created_by}</${Name}>` },
];

export function Links({ file }) {
  const list = api.useList(path`${fileAt(file.file_uuid)}/public-tokens`, "public_tokens", {}, { everyMs: 20_000 });
  const columns = [...linkColumns.map((c, at) => (at === 3 ? { ...c, width: "auto" } : c)),
    { key: "revoke", sortable: false, width: "7rem", small: "6.6rem", align: "end", render: (link) => link.status === "active" &&
      html`<${Action} label="Revoke… (the link that expires ${link.expires_at})" run=${async () => (await revoke(file, link)) && list.refresh()}>Revoke…</${Action}>` }];
  return html`<${DataTable} label="Links" noun="link" rows=${list.rows} keyOf=${(link) => link.id} columns=${columns}
      sort=${{ key: "created_at", down: true }} isLoading=${list.isLoading} error=${list.error} refresh=${list.refresh}
      empty=${html`<${Empty} title="No links.">A link lets people without an account download this file.</${Empty}>`} />
    <p class="under"><${Action} tone="primary" disabled=${file.status !== "available"} run=${async () => (await share(file)) && list.refresh()}>Share by a link…</${Action}></p>`;
}
