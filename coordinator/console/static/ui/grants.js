// Permissions on a bucket or a file: who has them, until when; to give and to take. `path`: "files/ID", "buckets/ID".
import { html } from "../html.js";
import * as api from "../api.js";
import { fromLocalInput, localInput } from "../format.js";
import { confirm, FormDialog, show } from "./dialog.js";
import { DataTable } from "./table.js";
import { Action, Badge, Empty, Name, Time } from "./parts.js";
import { notify } from "./toast.js";

const LEVELS = [["read", "read: look and download"], ["write", "write: read, change and upload"], ["admin", "admin: write, share, grant and delete"]];
const WHO = [["user", "a user"], ["group", "a group"], ["role", "a role"]];

export function give(path, of) {
  return show((close) => html`<${FormDialog} title="Give access" close=${close} action="Give access" submit=${async (values) => {
    const entry = await api.post(`${path}/permissions`, { ...values, expires_at: fromLocalInput(values.expires_at) });
    notify(`${entry.principal_id} has ${entry.permission} now.`, "good");
    return entry;
  }}><p>Access to ${of}.</p>
    <div class="pair"><label>For<select name="principal_type">${WHO.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select></label>
      <label>Name<input name="principal_id" required maxlength="128" pattern="[^\\s\\/]+" title="One word, as an administrator made it" autofocus /></label></div>
    <label>May<select name="permission">${LEVELS.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select></label>
    <label>Ends<input name="expires_at" type="datetime-local" min=${localInput(new Date())} /></label>
    <p class="quiet">Left empty, it holds until somebody removes it.</p></${FormDialog}>`);
}

export function take(path, entry) {
  return confirm({
    title: "Remove this access?",
    names: [`${entry.principal_type} ${entry.principal_id}: ${entry.permission}`],
    text: "Their next request goes without it.",
    action: "Remove",
    run: () => api.del(`${path}/permissions/${entry.id}`),
  });
}

export const isOver = (entry) => Boolean(entry.expires_at) && new Date(entry.expires_at) <= new Date();

export function Grants({ path, of }) {
  const list = api.useList(`${path}/permissions`, "permissions", {}, { everyMs: 20_000 });
  const columns = [
    { key: "principal_id", title: "Who", render: (e) => html`<${Name}>${e.principal_id}</${Name}>` },
    { key: "principal_type", title: "Is a", width: "5.5rem", hide: "narrow" },
    { key: "permission", title: "May", width: "6rem", small: "4.2rem", render: (e) => html`<${Badge} state=${e.permission} />` },
    { key: "granted_by", title: "Given by", width: "8rem", hide: "medium", render: (e) => html`<${Name}>${e.granted_by}</${Name}>` },
    { key: "expires_at", title: "Ends", width: "8rem", hide: "narrow", render: (e) =>
      isOver(e) ? html`<${Badge} state="expired" />` : html`<${Time} at=${e.expires_at} />` },
    { key: "take", sortable: false, width: "7.8rem", small: "6.2rem", align: "end", render: (e) => html`<${Action} label="Remove… (${e.permission} of ${e.principal_id})"
      run=${async () => (await take(path, e)) && list.refresh()}>Remove…</${Action}>` },
  ];
  return html`<${DataTable} label="Permissions" noun="permission" rows=${list.rows} keyOf=${(e) => e.id} columns=${columns}
      isLoading=${list.isLoading} error=${list.error} refresh=${list.refresh}
      empty=${html`<${Empty} title="Nobody but its owner.">Give access to a user, a group or a role.</${Empty}>`} />
    <p class="under"><${Action} tone="primary" run=${async () => (await give(path, of)) && list.refresh()}>Give access…</${Action}></p>`;
}
