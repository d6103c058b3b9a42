// Which process serves this page, which of them answers its requests, and where the console of others is.
// A coordinator serves the records and no content: files go through a node.
export const servesContent = document.documentElement.dataset.content === "yes";

// Leads to the console of some node, at the same page.
export const nodeConsole = () => `/console/node${location.hash}`;

// Where requests of this page can go: to who served it, and when that dies to one node after the other. The page's
// policy names them; it knows none where people reach the cluster by a public address, behind which others are anyway.
const named = (text = "") => text.split(" ").filter((each) => each && each !== location.origin);
const nodes = named(document.documentElement.dataset.nodes);
const coordinators = named(document.documentElement.dataset.coordinators);
const origins = [location.origin, ...shuffled(nodes)];
let at = 0;

function shuffled(all) {
  return all.map((each) => [Math.random(), each]).sort(([a], [b]) => a - b).map(([, each]) => each);
}

// Whether the page's policy lets it ask this member.
export const mayAsk = (whose) => [location.origin, ...nodes, ...coordinators].includes(whose);

export const origin = () => origins[at];

export const originsCount = origins.length;

// `origin` gave no answer: from now on the next one is asked. Nothing, if somebody else has seen to that.
export function leave(from) {
  if (origins.length > 1 && from === origin()) go((at + 1) % origins.length);
}

// Back to the node that served the page, if it answers again.
export async function tryHome() {
  if (at !== 0 && (await answers(location.origin))) go(0);
}

function go(next) {
  at = next;
  dispatchEvent(new CustomEvent("filestore:moved", { detail: at === 0 ? "" : origin() }));
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
export const otherConsoles = () => nodes.map((each) => `${each}/console/${location.hash}`);
