// The time of the cluster, as its answers tell it: the clock of this machine may be days off.

const NEAR_MS = 2000; // answers tell whole seconds, and take a moment to arrive
let aheadMs = 0; // of this machine's clock

// `date`: that of an answer that has just arrived.
export function learn(date) {
  const toldMs = Date.parse(date || "");
  if (Number.isNaN(toldMs)) return;
  const foundMs = Date.now() - toldMs;
  if (Math.abs(foundMs - aheadMs) > NEAR_MS) aheadMs = Math.abs(foundMs) > NEAR_MS ? foundMs : 0;
}

// Milliseconds since 1970.
export const now = () => Date.now() - aheadMs;

export const inHours = (hours) => new Date(now() + hours * 3_600_000);
