// The cluster's half of the first page, for administrators: health, capacity, what is going on, latest events.
import { html, useRef } from "../html.js";
import * as api from "../api.js";
import { merged, newest } from "../audit.js";
import { DISKS, HEALTH, NODE_STATES, inWords, isSilent, progressOf, stateOf, took, usable, useMembers, useStatus } from "../cluster.js";
import { now } from "../clock.js";
import { fileAddress, KINDS } from "../files.js";
import { counted, size } from "../format.js";
import { address } from "../path.js";
import { runbookAddress } from "../markdown.js";
import { Event } from "./audit-entry.js";
import { Badge, Bar, Card, Empty, ErrorBox, Loading, Name, Size, Time } from "./parts.js";

const EVENTS_SHOWN = 8;
const UPLOADS_SHOWN = 6;

export function ClusterOverview() {
  const status = useStatus();
  const cluster = status.data;
  return html`<${ErrorBox} error=${status.error} retry=${status.refresh} />
    ${!cluster && status.isLoading && html`<${Card} title="Health"><${Loading} lines=${4} /></${Card}>`}
    ${cluster && html`<${Health} cluster=${cluster} />
    <div class="cards"><${Capacity} cluster=${cluster} /><${GoingOn} cluster=${cluster} /></div>`}
    <${Events} />`;
}

function Health({ cluster }) {
  const [tone, sentence] = HEALTH[cluster.health] || ["plain", ""];
  return html`<${Card} title="Health of ${cluster.cluster}" class="health ${tone}"><p class="big" role="status"><${Badge} tone=${tone}>${cluster.health}</${Badge}>
      <span class="quiet"> ${sentence}</span></p>
    ${cluster.findings.length > 0 && html`<ul class="plain-list findings">${cluster.findings.map((finding) => html`<li class="spread">
      <span class="one-line">${finding.problem}</span><span class="right quiet">${finding.since && html`<span>since <${Time} at=${finding.since} how="moment" /></span>`}
      ${finding.runbook && html`<a href=${runbookAddress(finding.runbook)}>What to do</a>`}</span></li>`)}</ul>`}
    <p class="quiet">${counted(cluster.files, "file is", "files are")} stored. Equal files are stored once: ${counted(cluster.blobs, "different file")}, ${size(cluster.blob_bytes)} without the copies${cluster.trash_files > 0 && html`; <a href="#/trash">${counted(cluster.trash_files, "file")} in the trash</a>, ${size(cluster.trash_bytes)}`}.
      ${cluster.leader ? html` <a href="#/coordinators">${cluster.leader}</a> leads ${counted(cluster.coordinators.length, "coordinator")}.` : " No coordinator leads."}</p></${Card}>`;
}

const sum = (nodes, name) => nodes.reduce((total, node) => total + (node[name] || 0), 0);

function Capacity({ cluster }) {
  const known = cluster.nodes.filter((node) => !isSilent(node));
  const takers = known.filter((node) => stateOf(node) === "healthy");
  const copies = cluster.replicas_wanted || 1; // 0 from an older version
  const free = usable(takers.map((node) => node.free_bytes), copies);
  const total = usable(known.map((node) => node.total_bytes), copies);
  const cold = sum(known, "cold_bytes"), stored = sum(known, "cold_stored_bytes");
  return html`<${Card} title="Capacity" actions=${html`<a href="#/nodes">Nodes</a>`}>
    ${cluster.nodes.length === 0 ? html`<${Empty} title="No nodes yet."><a href="#/nodes">Add one</a>. Nodes store the content of files.</${Empty}>`
      : html`<p class="big">${size(free)} <span class="quiet">of ${size(total)} free for files${copies > 1 && `, with ${copies} copies of each`}</span></p>
    <p class="quiet">The disks of ${counted(known.length, "node")}, with all copies and whatever else is on them:</p>
    <ul class="plain-list">${cluster.nodes.map((node) => html`<li><div class="spread"><a href=${address`/nodes/${node.id}`}>${node.id}</a>
      <span class="right">${stateOf(node) !== "healthy" && html`<${NodeState} node=${node} />`}${node.disk !== "ok" && html`<${DiskState} node=${node} />`}
      <span class="number quiet">${isSilent(node) ? "no heartbeat yet" : `${size(node.total_bytes - node.free_bytes)} of ${size(node.total_bytes)}`}</span></span></div>
      <${DiskBar} node=${node} /></li>`)}</ul>
    ${cold > 0 && html`<p class="quiet">Cold replicas: ${size(cold)} stored in ${size(stored)}.</p>`}`}</${Card}>`;
}

export function NodeState({ node }) {
  const state = stateOf(node);
  const [tone, meaning] = NODE_STATES[state] || ["plain", ""];
  return html`<${Badge} state=${state} tone=${tone} title=${meaning} />`;
}

export function DiskState({ node }) {
  const [tone, meaning] = DISKS[node.disk] || ["plain", ""];
  return html`<${Badge} tone=${tone} title=${meaning}>disk ${node.disk}</${Badge}>`;
}

export function DiskBar({ node }) {
  const used = node.total_bytes - node.free_bytes;
  const tone = { full: "bad", failed: "bad", low: "warn" }[node.disk] || (used > 0.9 * node.total_bytes ? "warn" : "info");
  return html`<${Bar} value=${used} max=${node.total_bytes} label="Used of the disk of ${node.id}" tone=${tone} />`;
}

// Uploads of one kind of file, another kind each time: so that no more than one request a second is made.
function useUploading() {
  const kinds = Object.entries(KINDS);
  const kept = useRef({ next: 0, byKind: {} });
  return api.usePolled(async (signal) => {
    const { next, byKind } = kept.current;
    for (const [kind, { path, field }] of next === 0 ? kinds : [kinds[next % kinds.length]]) {
      const page = await api.get(path, { query: { status: "uploading", limit: UPLOADS_SHOWN }, signal });
      byKind[kind] = page[field].map((row) => ({ ...row, kind }));
    }
    kept.current.next += 1;
    // The time is in it, so that no kind is left alone for long.
    return { rows: Object.values(byKind).flat(), at: Math.floor(now() / 10_000) };
  }, [], { everyMs: 4000 });
}

function GoingOn({ cluster }) {
  const uploads = useUploading();
  const rows = uploads.data?.rows || [];
  if (cluster.runs.length === 0 && rows.length === 0) return null;
  return html`<${Card} title="In progress" actions=${html`<a href="#/jobs">Jobs</a>`}>
    <ul class="plain-list">${cluster.runs.map((run) => html`<li key=${run.run_id}><div class="spread"><a href=${address`/jobs/runs/${run.run_id}`}>${run.job_name}</a>
      <span class="quiet">for ${took(run)}${progressOf(run).wait && `, ${progressOf(run).wait} left`}</span></div><${RunBar} run=${run} />
      <span class="quiet">${inWords(run) || "Starting."}</span></li>`)}
    ${rows.map((file) => html`<li key=${file.file_uuid} class="spread"><span class="one-line"><a href=${fileAddress(file)}><${Name}>${file.filename}</${Name}></a></span>
      <span class="right"><${Badge} state="uploading" /><${Size} bytes=${file.size_bytes} /><${Time} at=${file.created_at} /></span></li>`)}</ul></${Card}>`;
}

export function RunBar({ run }) {
  const { done, left } = progressOf(run);
  if (left === undefined || run.status !== "running") return null;
  return html`<${Bar} value=${done} max=${done + left} label="Done of the run of ${run.job_name}" />`;
}

function Events() {
  const members = useMembers();
  const key = (members || []).map((each) => each.origin).join(" ");
  const { data, error, isLoading, refresh } = api.usePolled(
    (signal) => newest(members || [], { limit: EVENTS_SHOWN }, signal), [key], { everyMs: 20_000 });
  const entries = merged(data || []).slice(0, EVENTS_SHOWN);
  const isComing = !members || isLoading;
  if (!isComing && !error && entries.length === 0) return null;
  return html`<${Card} title="Latest events" actions=${html`<a href="#/audit">All</a>`}><${ErrorBox} error=${error} retry=${refresh} />
    ${isComing && html`<${Loading} lines=${4} />`}
    <ul class="plain-list">${entries.map((entry) => html`<${Event} entry=${entry} />`)}</ul></${Card}>`;
}
