// What was done with a file, as the audit log of this member has it. For administrators.
import { html } from "../html.js";
import * as api from "../api.js";
import { Badge, Card, Empty, ErrorBox, Name, Time } from "./parts.js";

const ENTRIES_SHOWN = 20;

export function History({ id }) {
  const { data, error, isLoading, refresh } = api.usePolled(
    (signal) => api.get("audit", { query: { target: id, limit: ENTRIES_SHOWN }, signal }), [id], { everyMs: 30_000 });
  const entries = data?.entries || [];
  return html`<${Card} title="History"><${ErrorBox} error=${error} retry=${refresh} />
    ${entries.length === 0 && !isLoading && !error && html`<${Empty} title="Nothing is recorded here.">Each member of the
      cluster has an audit log of its own: others may know more.</${Empty}>`}
    ${entries.length > 0 && html`<ul class="plain-list">${entries.map((entry) => html`<li><${Time} at=${entry.time} how="moment" />
      <${Name}>${entry.principal}</${Name}>: ${entry.action.replaceAll("_", " ")}${entry.outcome !== "ok" && html`
      <${Badge} tone="warn">${entry.outcome}</${Badge}>`}</li>`)}</ul>
      <p class="quiet">Done through this member of the cluster; each has an audit log of its own.</p>`}</${Card}>`;
}
