// Permissions on a bucket or a file: who has them, until when; to give and to take. `on`: `fileAt(id)`, `bucketAt(id)`.
import { html, useEffect, useState } from "../html.js";
import * as api from "../api.js";
import { inHours } from "../clock.js";
import { fromLocalInput, localInput } from "../format.js";
import { path } from "../path.js";
import { isOver } from "../rights.js";
import { isAdmin, session } from "../session.js";
import { confirm, FormDialog, show } from "./dialog.js";
import { DataTable } from "./table.js";
import { Action, Badge, Empty, Name, Time } from "./parts.js";
import { notify } from "./toast.js";

const LEVELS = [["read", "read: look and download"], ["write", "write: read, change and upload"], ["admin", "admin: write, share, grant and delete"]];
const WHO = [["user", "a user"], ["group", "a group"], ["role", "a role"]];

// Names that are offered: { user: [...], group: [...], role: [...] }. Administrators see all. Others see only names that
// they have given access before, so that nobody can list the users of the cluster.
async function knownNames() {
  const known = { user: [], group: [], role: [] };
  if (isAdmin()) {
    const [users, groups] = await Promise.all([api.list(path`auth/users`, "users"), api.list(path`groups`, "groups")]);
    known.group.push(...groups.rows.map((each) => each.group));
    for (const { user_id, roles } of users.rows) {
      known.user.push(user_id);
      known.role.push(...roles);
    }
  } else {
    const { rows } = await api.list(path`permissions`, "permissions");
    const own = session.get().user.user_id;
    for (const { granted_by, principal_type, principal_id } of rows) if (granted_by === own) known[principal_type].push(principal_id);
  }
  return Object.fromEntries(Object.entries(known).map(([type, names]) => [type, [...new Set(names)].sort()]));
}

export const give = (on, of) => show((close) => html`<${Giving} on=${on} of=${of} close=${close} />`);

function Giving({ on, of, close }) {
  const [known, setKnown] = useState({});
  const [type, setType] = useState("user");
  const [isUnknown, setIsUnknown] = useState(false);
  useEffect(() => {
    knownNames().then(setKnown, () => {});
  }, []);
  const submit = async ({ is_new, ...values }) => {
    const body = { ...values, expires_at: fromLocalInput(values.expires_at) };
    const entry = await api.post(path`${on}/permissions`, body, { query: { existing: is_new ? "" : 1 } }).catch((error) => {
      if (error.code === "not_found") {
        error.advice = "Check the spelling.";
        setIsUnknown(true);
      }
      throw error;
    });
    notify(`${entry.principal_id} has ${entry.permission} now.`, "good");
    return entry;
  };
  return html`<${FormDialog} title="Give access" close=${close} action="Give access" submit=${submit}><p>Access to ${of}.</p>
    <div class="pair"><label>For<select name="principal_type" onChange=${(event) => setType(event.target.value)}>${WHO.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select></label>
      <label>Name<input name="principal_id" required maxlength="128" pattern="[^\\s\\/]+" title="One word, exactly as an administrator created it" autofocus
        list="known-names" autocomplete="off" autocapitalize="off" spellcheck="false" onInput=${() => setIsUnknown(false)} /></label></div>
    <datalist id="known-names">${(known[type] || []).map((name) => html`<option value=${name}></option>`)}</datalist>
    <label>May<select name="permission">${LEVELS.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select></label>
    <label>Ends<input name="expires_at" type="datetime-local" min=${localInput(inHours(0))} /></label>
    <p class="quiet">If empty, the permission never expires.</p>
    ${isUnknown && html`<label class="flag"><input type="checkbox" name="is_new" value="1" />Give access anyway. It takes effect as soon as
      an administrator makes this ${type}</label>`}</${FormDialog}>`;
}

export function take(on, entry) {
  return confirm({
    title: "Remove this access?",
    names: [`${entry.principal_type} ${entry.principal_id}: ${entry.permission}`],
    text: "It no longer applies from their next request on.",
    action: "Remove",
    run: () => api.del(path`${on}/permissions/${entry.id}`),
  });
}

export function Grants({ on, of }) {
  const list = api.useList(path`${on}/permissions`, "permissions", {}, { everyMs: 20_000 });
  const columns = [
    { key: "principal_id", title: "Who", render: (e) => html`<${Name}>${e.principal_id}</${Name}>` },
    { key: "principal_type", title: "Is a", width: "5.5rem", hide: "narrow" },
    { key: "permission", title: "May", width: "6rem", small: "4.2rem", render: (e) => html`<${Badge} state=${e.permission} />` },
    { key: "granted_by", title: "Given by", width: "8rem", hide: "medium", render: (e) => html`<${Name}>${e.granted_by}</${Name}>` },
    { key: "expires_at", title: "Ends", width: "8rem", hide: "narrow", render: (e) =>
      isOver(e) ? html`<${Badge} state="expired" />` : html`<${Time} at=${e.expires_at} />` },
    { key: "take", sortable: false, width: "7.8rem", small: "6.2rem", align: "end", render: (e) => html`<${Action} label="Remove… (${e.permission} of ${e.principal_id})"
      run=${async () => (await take(on, e)) && list.refresh()}>Remove…</${Action}>` },
  ];
  return html`<${DataTable} label="Permissions" noun="permission" rows=${list.rows} keyOf=${(e) => e.id} columns=${columns}
      isLoading=${list.isLoading} error=${list.error} refresh=${list.refresh}
      empty=${html`<${Empty} title="Only its owner has access.">Give access to a user, a group or a role.</${Empty}>`} />
    <p class="under"><${Action} tone="primary" run=${async () => (await give(on, of)) && list.refresh()}>Give access…</${Action}></p>`;
}
