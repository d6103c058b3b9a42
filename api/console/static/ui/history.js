// What was done with a file, as the audit logs of all members have it. For administrators.
import { html } from "../html.js";
import * as api from "../api.js";
import { merged, newest, silent } from "../audit.js";
import { useMembers } from "../cluster.js";
import { Badge, Card, Empty, ErrorBox, Loading, Name, Time } from "./parts.js";

const ENTRIES_SHOWN = 20;

export function History({ id }) {
  const members = useMembers();
  const key = JSON.stringify([id, (members || []).map((each) => each.origin)]);
  const { data, error, isLoading, refresh } = api.usePolled(
    (signal) => newest(members || [], { target: id, limit: ENTRIES_SHOWN }, signal), [key], { everyMs: 60_000 });
  const entries = merged(data || []).slice(0, ENTRIES_SHOWN);
  const missing = silent(data || []);
  return html`<${Card} title="History"><${ErrorBox} error=${error} retry=${refresh} />
    ${(!members || isLoading) && html`<${Loading} lines=${2} />`}
    ${members && entries.length === 0 && !isLoading && !error && html`<${Empty} title="Nothing is recorded.">What people do with this file
      would be listed here.</${Empty}>`}
    ${entries.length > 0 && html`<ul class="plain-list">${entries.map((entry) => html`<li><${Time} at=${entry.time} how="moment" />
      <${Name}>${entry.principal}</${Name}>: ${entry.action.replaceAll("_", " ")}${entry.outcome !== "ok" && html`
      <${Badge} tone="warn">${entry.outcome}</${Badge}>`}</li>`)}</ul>`}
    ${missing.length > 0 && html`<p class="quiet">each.id).join(", ")} would say. => Entries are missing from ${missing.map((each) => each.id).join(", ")}. => each.id).join(", ")} would say.</p>`}</${Card}>`;
}
