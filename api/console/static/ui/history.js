// What was done with a file, from its upload on, as the audit logs of all members have it. For administrators.
import { html } from "../html.js";
import * as api from "../api.js";
import { merged, newest, silent } from "../audit.js";
import { useMembers } from "../cluster.js";
import { didWhat, who } from "./audit-entry.js";
import { Card, ErrorBox, Loading, Name, Time } from "./parts.js";

const ENTRIES_SHOWN = 20;

// Audit logs have no uploads, and forget what is old: the record of the file has when it was created, and by whom.
const uploadOf = (file) => ({ time: file.created_at, principal: file.owner_id, did: "uploaded it" });

export function History({ file }) {
  const id = file.file_uuid;
  const members = useMembers();
  const key = JSON.stringify([id, (members || []).map((each) => each.origin)]);
  const { data, error, isLoading, refresh } = api.usePolled(
    (signal) => newest(members || [], { target: id, limit: ENTRIES_SHOWN }, signal), [key], { everyMs: 60_000 });
  const entries = [...merged(data || []).slice(0, ENTRIES_SHOWN), uploadOf(file)];
  const missing = silent(data || []);
  return html`<${Card} title="History"><${ErrorBox} error=${error} retry=${refresh} />
    ${(!members || isLoading) && html`<${Loading} lines=${2} />`}
    ${members && !isLoading && html`<ul class="plain-list">${entries.map((entry) => html`<li><${Time} at=${entry.time} how="moment" />
      <${Name}>${who(entry)}</${Name}> ${entry.did || didWhat(entry)}</li>`)}</ul>`}
    ${missing.length > 0 && html`<p class="quiet">Entries are missing from ${missing.map((each) => each.id).join(", ")}.</p>`}</${Card}>`;
}
