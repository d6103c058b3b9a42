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
  degraded: ["warn", "It works. Something needs attention:"],
  unavailable: ["bad", "Changes or uploads are refused:"],
};

// States of nodes: tone, and what it means.
export const NODE_STATES = {
  healthy: ["good", "It takes new files and serves what it holds."],
  draining: ["warn", "Nothing new is placed there; what it holds moves to others."],
  unreachable: ["bad", "Most other nodes cannot connect to it."],
  suspect: ["warn", "It has been silent for more than 10 seconds."],
  down: ["bad", "It has been silent for long: other nodes make its replicas anew."],
  returning: ["info", "It is back; its replicas are compared before they count."],
  unheard: ["warn", "The coordinator that leads has not heard it yet."],
  joined: ["info", "It has joined and has never run: start it."],
  revoked: ["bad", "Its certificates are revoked: remove it, or let it join anew."],
};

export const DISKS = {
  ok: ["good", "It takes bytes."],
  low: ["warn", "Only the reserve is left: nothing new is placed there."],
  full: ["bad", "Nothing can be written there: make room."],
  failed: ["bad", "It takes no bytes: look at the disk."],
};

export const ROLES = {
  leader: ["good", "It orders all changes."],
  follower: ["info", "It follows the leader."],
  candidate: ["warn", "It asks for votes to lead."],
  pre_candidate: ["warn", "It asks whether others would vote for it."],
  unreachable: ["bad", "It does not answer: start it, or look at its machine."],
};

export const stateOf = (node) => (node.revoked ? "revoked" : node.state);

export const isSilent = (node) => node.total_bytes === 0;

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
const WORDS = { looked: "looked at", no_room: "without room", unheard: "nodes not heard", failed: "failed copies" };

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
