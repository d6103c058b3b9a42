// Nodes, which keep the bytes: how each is, and what can be done with it; the tokens by which others join.
import { html } from "../html.js";
import * as api from "../api.js";
import { clock, isSilent, stateOf, useStatus } from "../cluster.js";
import { now } from "../clock.js";
import { duration, size } from "../format.js";
import { address, path } from "../path.js";
import { go } from "../router.js";
import { DiskBar, DiskState, NodeState } from "../ui/cluster-overview.js";
import { addMachine, drain, endToken, remove, revoke, undrain } from "../ui/node-actions.js";
import { Menu } from "../ui/menu.js";
import { PlainTable } from "../ui/plain-table.js";
import { DataTable } from "../ui/table.js";
import { Action, Badge, Card, Empty, ErrorBox, Heading, Name, Time } from "../ui/parts.js";

export const isDraining = (node) => stateOf(node) === "draining";

// The actions for a node, as items of a menu.
export const nodeItems = (node, changed) => [
  !isDraining(node) && { text: "Drain…", run: async () => (await drain(node)) && changed() },
  // Of a node that is not heard, its state does not tell whether it drains.
  stateOf(node) !== "healthy" && { text: "Stop draining", run: async () => (await undrain(node), changed()) },
  { text: "Remove…", tone: "bad", run: async () => (await remove(node)) && changed() },
  !node.revoked && { text: "Revoke its certificates…", tone: "bad", run: async () => (await revoke(node)) && changed() },
];

const used = (node) => node.total_bytes - node.free_bytes;

export const heard = (node) => (node.heard_ms_ago ? `${node.heard_ms_ago < 10_000 ? "now" : `${duration(node.heard_ms_ago / 1000)} ago`}` : "never");

export default function Nodes() {
  const status = useStatus();
  const rows = status.data?.nodes || [];
  const columns = [
    { key: "id", title: "Node", render: (n) => html`<a href=${address`/nodes/${n.id}`}><${Name}>${n.id}</${Name}></a>` },
    { key: "state", title: "State", width: "8rem", value: stateOf, render: (n) => html`<${NodeState} node=${n} />` },
    { key: "used", title: "Disk", width: "16rem", hide: "narrow", value: used, render: (n) => isSilent(n) ? html`<span class="quiet">no heartbeat yet</span>`
      : html`<span class="quota">${n.disk === "ok" ? html`<span class="number">${size(used(n))} of ${size(n.total_bytes)}</span>` : html`<${DiskState} node=${n} />`}<${DiskBar} node=${n} /></span>` },
    { key: "uploads", title: "Uploads", width: "7rem", align: "end", hide: "medium" },
    { key: "heard_ms_ago", title: "Heard", width: "6.5rem", hide: "medium", render: heard },
    { key: "clock", title: "Clock", width: "7rem", hide: "wide", value: clock, render: (n) => clock(n) === "" ? html`<span class="quiet">unknown</span>` : clock(n) },
    { key: "version", title: "Version", width: "6rem", hide: "wide", value: (n) => n.version || "", render: (n) => n.version || html`<span class="quiet">unknown</span>` },
    { key: "certificate_expires_at", title: "Certificate", width: "7.5rem", hide: "medium", value: (n) => n.certificate_expires_at || "", render: (n) => html`<${Time} at=${n.certificate_expires_at} none="unknown" />` },
    { key: "zone", title: "Zone", width: "6rem", hide: "wide", render: (n) => n.zone || html`<span class="quiet">none</span>` },
    { key: "menu", sortable: false, width: "3.2rem", align: "end", render: (n) => html`<${Menu} label="Actions for ${n.id}" items=${[
      { text: "Show", run: () => go(address`/nodes/${n.id}`) }, ...nodeItems(n, status.refresh)]} />` },
  ];
  return html`<${Heading} title="Nodes" sub="Nodes store the content of files. Their certificates are renewed automatically, days before they expire.">
      <${Action} tone="primary" run=${() => addMachine({ nodeOnly: true })} onDone=${status.refresh}>Add a node…</${Action}></${Heading}>
    <${DataTable} label="Nodes" noun="node" rows=${rows} keyOf=${(n) => n.id} columns=${columns}
      search=${{ label: "Search by name, zone or state", text: (n) => `${n.id} ${n.zone} ${stateOf(n)} ${n.url}` }}
      isLoading=${status.isLoading} error=${status.error} refresh=${status.refresh} sort=${{ key: "id", down: false }}
      empty=${html`<${Empty} title="No nodes yet.">Add a node to store files. Use at least three.</${Empty}>`} />
    <${JoinTokens} />`;
}

const isOver = (token) => token.uses >= token.max_uses || new Date(token.expires_at) < now();

function JoinTokens() {
  const list = api.useList(path`cluster/join-tokens`, "join_tokens", {}, { everyMs: 15_000 });
  if (list.rows.length === 0 && !list.error) return null;
  const columns = [
    { key: "node_id", title: "For", render: (t) => t.node_id || "any node" },
    { key: "uses", title: "Used", width: "6rem", hide: "narrow", render: (t) => `${t.uses} of ${t.max_uses}` },
    { key: "created_by", title: "Made by", width: "8rem", hide: "narrow", render: (t) => html`<${Name}>${t.created_by}</${Name}>` },
    { key: "expires_at", title: "Ends", width: "7rem", render: (t) => isOver(t) ? html`<${Badge} state=${t.uses < t.max_uses ? "expired" : "used"} />` : html`<${Time} at=${t.expires_at} />` },
    { key: "end", width: "5rem", align: "end", render: (t) => !isOver(t) && html`<${Action} label="End the join token for ${t.node_id || "any node"}"
      run=${async () => (await endToken(t)) && list.refresh()}>End</${Action}>` },
  ];
  return html`<${Card} title="Join tokens"><${ErrorBox} error=${list.error} retry=${list.refresh} />
    <${PlainTable} label="Join tokens" rows=${list.rows} keyOf=${(t) => t.token_id} columns=${columns} /></${Card}>`;
}
