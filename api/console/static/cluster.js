// The cluster as administrators see it: its status, the words for states, how far a run of a job is.
import * as api from "./api.js";
import { now } from "./clock.js";
import { duration, size } from "./format.js";
import { originOf, path } from "./path.js";

// How the cluster is; this answers without a majority of the coordinators, too.
export const useStatus = (everyMs = 4000) =>
  api.usePolled((signal) => api.get(path`cluster/status`, { signal }), [], { everyMs });

export const HEALTH = {
  healthy: ["good", "Everything is in order."],
  degraded: ["warn", "The cluster works, but something needs attention:"],
  unavailable: ["bad", "Changes or uploads are rejected:"],
};

// States of nodes: tone, and what it means.
export const NODE_STATES = {
  healthy: ["good", "It accepts new files and serves its content."],
  draining: ["warn", "It receives no new files, and its content is moving to other nodes."],
  unreachable: ["bad", "Most other nodes cannot connect to it."],
  suspect: ["warn", "It has sent no heartbeat for more than 10 seconds."],
  down: ["bad", "It has sent no heartbeat for a long time. Its replicas are created again on other nodes."],
  returning: ["info", "It is back. Its replicas are compared before they count."],
  unheard: ["warn", "It has sent no heartbeat to the current leader yet."],
  joined: ["info", "It has joined but has never run. Start it."],
  revoked: ["bad", "Its certificates are revoked. Remove it, or let it join again."],
};

export const DISKS = {
  ok: ["good", "It can be written."],
  low: ["warn", "Only the reserve is left. The node receives no new files."],
  full: ["bad", "Nothing can be written there. Free some space."],
  failed: ["bad", "It cannot be written. Check the disk."],
};

export const ROLES = {
  leader: ["good", "It coordinates all changes."],
  follower: ["info", "It follows the leader."],
  candidate: ["warn", "It asks for votes to become the leader."],
  pre_candidate: ["warn", "It asks whether others would vote for it."],
  unreachable: ["bad", "It does not answer. Start it, or check its machine."],
};

export const stateOf = (node) => (node.revoked ? "revoked" : node.state);

export const isSilent = (node) => node.total_bytes === 0;

// How many bytes of files fit into these rooms of nodes, with so many copies of each file on different nodes. A node that
// has more room than all files together need holds one copy of each; the others share the rest. Pure.
export function usable(rooms, copies) {
  const largest = [...rooms].sort((a, b) => b - a);
  const count = Math.min(Math.max(copies, 1), rooms.length);
  let left = rooms.reduce((sum, room) => sum + room, 0);
  for (let full = 0; full < count; full += 1) {
    const bytes = left / (count - full);
    if (full === count - 1 || largest[full] <= bytes) return Math.floor(bytes);
    left -= largest[full];
  }
  return 0;
}

// "right", or by how much it is off; "" where nobody knows. Below a second it is the way of the messages.
export function clock(member) {
  const offset = member.clock_offset_ms;
  if (offset === undefined) return "";
  if (Math.abs(offset) < 1000) return "right";
  return `${duration(Math.abs(offset) / 1000)} ${offset > 0 ? "ahead" : "behind"}`;
}

// All members but revoked nodes, nodes first: [{ id, origin }], as far as it is known; null until somebody has answered.
export function useMembers() {
  const status = api.usePolled((signal) => api.get(path`cluster/status`, { signal }), [], { isLive: false });
  const authority = api.usePolled((signal) => api.get(path`cluster/ca`, { signal }), [], { isLive: false });
  if (status.isLoading || authority.isLoading) return null;
  const nodes = (status.data?.nodes || []).filter((node) => node.url && !node.revoked).map((node) => ({ id: node.id, url: node.url }));
  const coordinators = (authority.data?.coordinators || []).map((each) => ({ id: each.coordinator_id, url: urlOf(each) }));
  const members = [...nodes, ...coordinators].map(({ id, url }) => ({ id, origin: originOf(url) }));
  return members.some((each) => each.origin === location.origin) ? members : [{ id: "this member", origin: location.origin }, ...members];
}

export const urlOf = (coordinator) =>
  `https://${coordinator.address.includes(":") ? `[${coordinator.address}]` : coordinator.address}:${coordinator.api_port}`;

// ---- runs of jobs

const BYTES = { bytes: "data", blob_bytes: "data of blobs", lost_bytes: "lost data", read_bytes: "data read" };
const WORDS = { looked: "checked", no_room: "without room", unheard: "nodes without heartbeat", failed: "failed copies" };

const first = (result, names) => names.map((name) => result[name]).find((value) => typeof value === "number");

// What a run counts, in words: [["copied", "12"], ["data", "1.5 GB"]].
export const countsOf = (run) =>
  Object.entries(run.result || {})
    .filter(([name]) => name !== "error")
    .map(([name, value]) => [BYTES[name] || WORDS[name] || name.replaceAll("_", " "), shown(name, value)]);

function shown(name, value) {
  if (typeof value !== "number") return String(value);
  return name in BYTES ? size(value) : value.toLocaleString("en");
}

export const inWords = (run) => countsOf(run).map(([name, value]) => `${name} ${value}`).join(", ");

// { done, left, wait }: `left` undefined while the job does not know it, `wait` how long the rest takes at this pace.
export function progressOf(run, at = now()) {
  const result = run.result || {};
  const done = first(result, ["done", "dropped", "released", "copied", "looked"]) || 0;
  const left = typeof result.left === "number" ? result.left : undefined;
  const elapsed = (at - new Date(run.started_at).getTime()) / 1000;
  const wait = run.status === "running" && left > 0 && done > 0 && elapsed > 0 ? duration((elapsed / done) * left) : "";
  return { done, left, wait };
}

export function took(run, at = now()) {
  const end = run.completed_at ? new Date(run.completed_at).getTime() : at;
  return duration((end - new Date(run.started_at).getTime()) / 1000);
}
