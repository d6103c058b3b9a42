// Which process serves this page, and where the console of others is.
import * as api from "./api.js";

// A coordinator serves the records and no content: files go through a node.
export const servesContent = document.documentElement.dataset.content === "yes";

// Leads to the console of some node, at the same page.
export const nodeConsole = () => `/console/node${location.hash}`;

let known = [];

// Addresses of other nodes' consoles, as far as they were told while this process could be asked.
export const otherConsoles = () =>
  known.filter((target) => target !== location.host).map((target) => `https://${target}/console/${location.hash}`);

export async function learnOthers() {
  try {
    const [group] = await api.get("/metrics/targets", { query: { role: "node" } });
    known = group.targets;
  } catch {
    // What was known stays: this is for the time when nobody answers.
  }
}
