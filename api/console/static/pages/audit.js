// Who did what, newest first, as all members have it on record.
import { html, useEffect, useState } from "../html.js";
import * as api from "../api.js";
import { hasMore, merged, newest, PAGE_ROWS, silent, withOlder } from "../audit.js";
import { inHours } from "../clock.js";
import { useMembers } from "../cluster.js";
import { counted, fromLocalInput, localInput } from "../format.js";
import { consoleOf } from "../place.js";
import { replaceQuery } from "../router.js";
import { ACTIONS, didWhat, EntryTarget, who } from "../ui/audit-entry.js";
import { PlainTable } from "../ui/plain-table.js";
import { Action, Badge, Empty, ErrorBox, Heading, Loading, Name, When } from "../ui/parts.js";

const SPANS = [["", "any time"], ["1", "the last hour"], ["24", "the last day"], ["168", "the last 7 days"], ["own", "from … until …"]];

// The API's filters, of the fields of the form.
function asked({ principal, action, target, span, since, until }) {
  const query = { principal: principal?.trim(), action: action?.trim(), target: target?.trim(), limit: PAGE_ROWS };
  if (span === "own") return { ...query, since: fromLocalInput(since), until: fromLocalInput(until) };
  return span ? { ...query, since: inHours(-Number(span)).toISOString() } : query;
}

export default function Audit({ query }) {
  const [filters, setFilters] = useState(query);
  const [typed, setTyped] = useState(query);
  const [older, setOlder] = useState(null);
  const all = useMembers();
  const members = (all || []).filter((each) => !filters.member || each.id === filters.member);
  const key = JSON.stringify([filters, members.map((each) => each.origin)]);
  // One request for each member, and one a second: so they come less often than elsewhere.
  const latest = api.usePolled((signal) => newest(members, asked(filters), signal), [key], { everyMs: 15_000, isLive: older === null });
  useEffect(() => {
    setOlder(null);
    replaceQuery(filters);
  }, [key]);
  useEffect(() => {
    const timer = setTimeout(() => setFilters(typed), 400); // not a request for each letter
    return () => clearTimeout(timer);
  }, [typed]);
  const answers = older ?? latest.data ?? [];
  const entries = merged(answers);
  const isLoading = !all || latest.isLoading;
  const isMore = hasMore(answers);
  const more = async () => setOlder(await withOlder(answers, asked(filters)));
  const isNarrowed = Object.values(filters).some(Boolean);
  const count = isLoading ? "" : `${counted(entries.length, "entry", "entries")}${isMore ? " so far" : ""}`;
  return html`<${Heading} title="Audit log" sub="Who did what on every node and coordinator, newest first." />
    <div class="table-box"><${Filters} typed=${typed} setTyped=${setTyped} members=${all || []} count=${count} />
      <${ErrorBox} error=${latest.error} retry=${latest.refresh} /><${Silent} answers=${answers} refresh=${latest.refresh} />
      ${isLoading ? html`<${Loading} lines=${8} />` : entries.length > 0 ? html`<${Entries} entries=${entries} />`
        : !latest.error && !isMore && html`<${Empty} title=${isNarrowed ? "No entry matches." : "There are no entries yet."}>
          ${isNarrowed && html`<button type="button" class="small outline" onClick=${() => setTyped({})}>Show all</button>`}</${Empty}>`}
      ${isMore && html`<p class="under"><${Action} run=${more}>Show older entries</${Action}></p>`}</div>`;
}

// Members that did not answer: what they have is missing here.
function Silent({ answers, refresh }) {
  const missing = silent(answers);
  if (missing.length === 0) return null;
  return html`<div class="banner warn" role="status"><p>Entries are missing from ${missing.map((each, index) => html`${index > 0 ? ", " : ""}<a
    href=${consoleOf(each.origin, location.hash)} rel="noreferrer">${each.id}</a> (${each.error.message.replace(/\.$/, "")})`)}.${" "}
    <code>filestore audit</code> on the command line asks every member.</p><button type="button" class="small" onClick=${refresh}>Ask again</button></div>`;
}

function Filters({ typed, setTyped, members, count }) {
  const field = (name) => ({ value: typed[name] || "", onInput: (event) => setTyped({ ...typed, [name]: event.target.value }) });
  return html`<div class="toolbar many">
    <input type="search" aria-label="Who did it" placeholder="Who, such as alice" autocapitalize="off" ...${field("principal")} />
    <input type="search" aria-label="What was done" placeholder="Action, such as delete_file" list="audit-actions" autocapitalize="off" ...${field("action")} />
    <datalist id="audit-actions">${ACTIONS.map((name) => html`<option value=${name}></option>`)}</datalist>
    <input type="search" aria-label="To what: an id or a name" placeholder="To what: an id or a name" autocapitalize="off" ...${field("target")} />
    <select aria-label="Through which member" ...${field("member")}><option value="">any member</option>
      ${members.map((each) => html`<option value=${each.id}>${each.id}</option>`)}</select>
    <select aria-label="When" ...${field("span")}>${SPANS.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select>
    ${typed.span === "own" && html`<input type="datetime-local" aria-label="From" max=${localInput(inHours(0))} ...${field("since")} />
      <input type="datetime-local" aria-label="Until" ...${field("until")} />`}
    <span class="count" role="status">${count}</span></div>`;
}

function Entries({ entries }) {
  const columns = [
    { key: "time", title: "When", width: "10.6rem", small: "5.8rem", render: (e) => html`<${When} at=${e.time} />` },
    { key: "principal", title: "Who", width: "8.2rem", small: "4.6rem", render: (e) => e.principal === "-" ? html`<span class="quiet">${who(e)}</span>` : html`<${Name} title=${e.principal}>${who(e)}</${Name}>` },
    { key: "action", title: "Did", width: "12rem", small: "auto", render: (e) => html`<span title=${e.action}>${didWhat(e)}</span><span class="brief"> <${EntryTarget} entry=${e} /></span>` },
    { key: "target", title: "To", hide: "narrow", render: (e) => html`<span><${EntryTarget} entry=${e} /></span>` },
    { key: "outcome", title: "Outcome", width: "8rem", hide: "medium", render: (e) => html`<${Badge} state=${e.outcome} tone=${e.outcome === "ok" ? "good" : "warn"} />` },
    { key: "member", title: "Through", width: "8.5rem", hide: "medium" },
    { key: "client_address", title: "From", width: "9rem", hide: "wide" },
    { key: "request_id", title: "Request", width: "9rem", hide: "wide", render: (e) => html`<code title="The id of the request in the logs: ${e.request_id}">${e.request_id.slice(-12)}</code>` },
  ];
  return html`<${PlainTable} label="Audit log" rows=${entries} keyOf=${(e) => `${e.member} ${e.time} ${e.request_id} ${e.action} ${e.target}`} columns=${columns} />`;
}
