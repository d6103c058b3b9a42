// Which process serves this page, which of them answers its requests, and where the console of others is.
// A coordinator serves the records and no content: files go through a node.
import { originOf } from "./path.js";

export const servesContent = document.documentElement.dataset.content === "yes";

// Leads to the console of some node, at the same page.
export const nodeConsole = () => `/console/node${location.hash}`;

export const consoleOf = (url, hash = "") => `${originOf(url)}/console/${hash}`;

// Where requests of this page can go: to the process that served it, and when that dies, to a node. The page's policy
// names them; it names none where people reach the cluster by a public address, behind which others are anyway.
const named = (text = "") => text.split(" ").filter(Boolean);
const nodes = named(document.documentElement.dataset.nodes);
const coordinators = named(document.documentElement.dataset.coordinators);
const home = location.origin;
const candidates = [home, ...shuffled(nodes.filter((each) => each !== home))];
const ANSWER_MS_MAX = 4000;
let members = new Set([...nodes, ...coordinators]); // as `current` told last
let current = home;
let leaving = null;

function shuffled(all) {
  return all.map((each) => [Math.random(), each]).sort(([a], [b]) => a - b).map(([, each]) => each);
}

const canAsk = (whose) => (nodes.includes(whose) || coordinators.includes(whose)) && members.has(whose);

// Whether this origin may get the token: the page's policy names it, and it is still a member.
export const mayAsk = (whose) => whose === home || canAsk(whose);

export const origin = () => current;

export const originsCount = candidates.length;

// `from` gave no answer: resolves once requests go to another node, or none can be trusted.
export function leave(from) {
  if (from !== current || originsCount === 1) return Promise.resolve();
  leaving ||= successorOf(from).then((next) => next && go(next)).finally(() => {
    leaving = null;
  });
  return leaving;
}

// The certificate of a revoked node is valid for days, and a thief who has it names itself a member. So the page asks
// every other member for the members, without the token, and believes more than half of those that answer.
async function successorOf(silent) {
  const asked = [...new Set([home, ...nodes, ...coordinators])].filter((each) => each !== silent && canAsk(each));
  const answers = await Promise.all(asked.map(async (from) => ({ from, told: await membersAt(from) })));
  const answered = answers.filter(({ told }) => told);
  const isMember = (whose) => {
    const others = answered.filter(({ from }) => from !== whose);
    return others.filter(({ told }) => told.has(whose)).length > others.length / 2;
  };
  return [home, current, ...candidates].find((each) => answered.some(({ from }) => from === each) && isMember(each));
}

// The origins of all members, as this one tells them; null if it does not, or its view of the cluster is too old.
async function membersAt(whose) {
  try {
    const response = await fetch(`${whose}/console/members`, { credentials: "omit", cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS_MAX) });
    if (!response.ok) return null;
    const told = await response.json();
    return new Set([...told.nodes, ...told.coordinators]);
  } catch {
    return null;
  }
}

// What the page does regularly: it learns who is a member by now, leaves a node that is none any more, and goes back
// to the node that served it, if that answers again.
export async function look() {
  if (current !== home) {
    // Whoever stands in may have been revoked since, and would be the last to say so.
    const next = await successorOf("");
    if (next && next !== current) go(next);
    return;
  }
  const told = await membersAt(current);
  if (!told) return;
  const wasMember = members.has(current);
  members = told;
  if (wasMember && !told.has(current)) await leave(current);
}

function go(next) {
  current = next;
  dispatchEvent(new CustomEvent("filestore:moved", { detail: current === home ? "" : current }));
}

// Whether a process answers soon.
export async function answers(whose, withinMs = 5000) {
  try {
    await fetch(`${whose}/healthz`, { credentials: "omit", cache: "no-store", signal: AbortSignal.timeout(withinMs) });
    return true;
  } catch {
    return false;
  }
}

// Addresses of other nodes' consoles, at the same page.
export const otherConsoles = () => nodes.filter((each) => each !== home && members.has(each)).map((each) => consoleOf(each, location.hash));
