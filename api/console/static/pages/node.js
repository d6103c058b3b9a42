// One node: all that is known of it, what troubles it, and what can be done.
import { html } from "../html.js";
import * as api from "../api.js";
import { clock, DISKS, isSilent, NODE_STATES, stateOf, useStatus } from "../cluster.js";
import { counted, size } from "../format.js";
import { runbookAddress } from "../markdown.js";
import { address, path } from "../path.js";
import { consoleOf } from "../place.js";
import { go } from "../router.js";
import { DiskBar, DiskState, NodeState } from "../ui/cluster-overview.js";
import { drain, forgetInstance, remove, revoke, undrain } from "../ui/node-actions.js";
import { Menu } from "../ui/menu.js";
import { Action, Badge, Card, Empty, ErrorBox, Facts, Heading, Loading, Time } from "../ui/parts.js";
import { heard, isDraining } from "./nodes.js";

export default function Node({ params }) {
  const status = useStatus();
  const record = api.usePolled(async (signal) => {
    const { nodes } = await api.get(path`cluster/nodes`, { query: { limit: 1000 }, signal });
    return nodes.find((node) => node.id === params.id) || null;
  }, [params.id], { everyMs: 15_000 });
  const node = status.data?.nodes.find((each) => each.id === params.id);
  if (!status.data) {
    return html`<${Heading} title="Node" /><${ErrorBox} error=${status.error} retry=${status.refresh} />
      ${status.isLoading && html`<${Loading} lines=${8} />`}`;
  }
  if (!node) {
    return html`<${Heading} title="Node" /><${Empty} title="There is no such node."><a href="#/nodes">See which there are</a></${Empty}>`;
  }
  const changed = () => Promise.all([status.refresh(), record.refresh()]);
  const leave = async (done) => {
    if (await done) go("/nodes");
  };
  return html`<${Heading} title=${node.id} sub=${html`Node <${NodeState} node=${node} /> ${NODE_STATES[stateOf(node)]?.[1]}`}>
      ${isDraining(node) ? html`<${Action} run=${() => undrain(node)} onDone=${changed}>Stop draining</${Action}>`
        : html`<${Action} run=${() => drain(node)} onDone=${changed}>Drain…</${Action}>`}
      <${Action} tone="danger" run=${() => leave(remove(node))}>Remove…</${Action}>
      <${Menu} label="More actions for ${node.id}" items=${[
        !node.revoked && { text: "Revoke its certificates…", tone: "bad", run: async () => (await revoke(node)) && changed() },
        { text: "Allow another directory for it…", run: async () => (await forgetInstance(node)) && changed() },
      ]} /></${Heading}>
    <${ErrorBox} error=${status.error || record.error} retry=${changed} />
    <${Troubles} node=${node} findings=${status.data.findings} />
    <div class="cards"><${Card} title="Disk">${isSilent(node) ? html`<${Empty} title="No heartbeat yet.">Start the node. It then reports the state of its disk.</${Empty}>`
      : html`<p class="big">${size(node.free_bytes)} <span class="quiet">free of ${size(node.total_bytes)}</span></p><${DiskBar} node=${node} />
      <${Facts} rows=${[["State", html`<${DiskState} node=${node} /> ${DISKS[node.disk]?.[1]}`], ["Uploads there", node.uploads.toLocaleString("en")],
        ["Replicas", node.replicas === undefined ? null : node.replicas.toLocaleString("en")],
        ["Cold replicas", node.cold_bytes ? `${size(node.cold_bytes)} stored in ${size(node.cold_stored_bytes)}` : "none"],
        ["Read whole since", node.scrubbed_since ? html`<${Time} at=${node.scrubbed_since} how="moment" />` : "Unknown. The job scrub reads all of it."]]} />`}</${Card}>
    <${Card} title="Member"><${Facts} rows=${[
      ["Address", node.url && html`<a href=${consoleOf(node.url)} rel="noreferrer">${node.url}</a>`],
      ["Heard", heard(node)], ["Recorded as", node.recorded], ["Clock", clock(node) || "unknown"],
      ["Version", node.version || "unknown"],
      ["Certificate ends", html`<${Time} at=${node.certificate_expires_at} how="moment" none="unknown" />`],
      ["Zone", node.zone || "none"], ["Weight", String(node.weight)],
      ["Peer port", record.data?.peer_port ? String(record.data.peer_port) : null],
      ["Joined", record.data && html`<${Time} at=${record.data.joined_at} how="moment" />`],
    ]} /></${Card}></div>
    <${Drain} node=${node} runs=${status.data.runs} />`;
}

function Troubles({ node, findings }) {
  const own = findings.filter((finding) => finding.problem.split(/[^a-z0-9-]+/).includes(node.id));
  if (own.length === 0) return null;
  return html`<${Card} title="Problems"><ul class="plain-list">${own.map((finding) => html`<li class="spread"><span class="one-line">${finding.problem}</span>
    <span class="right quiet">${finding.since && html`<span>since <${Time} at=${finding.since} how="moment" /></span>`}${finding.runbook && html`<a href=${runbookAddress(finding.runbook)}>What to do</a>`}</span></li>`)}</ul>
    ${node.poison_count > node.poison.length && html`<p class="quiet">${counted(node.poison_count, "thing")} on its disk in all.</p>`}</${Card}>`;
}

function Drain({ node, runs }) {
  const run = runs.find((each) => each.job_name === "drain");
  if (!isDraining(node)) return null;
  return html`<${Card} title="Draining"><p>${run ? html`<a href=${address`/jobs/runs/${run.run_id}`}>The job drain runs</a> <${Badge} state="running" />`
    : node.replicas > 0 ? html`${counted(node.replicas, "replica")} ${node.replicas === 1 ? "is" : "are"} not on other nodes yet. The <a href="#/jobs">job drain</a> continues within seconds.`
      : "It holds no replicas any more."}</p>
    <p class="quiet">When it holds nothing, you can remove it, or stop it for maintenance.</p></${Card}>`;
}
