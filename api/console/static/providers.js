// Signing in with an identity provider: the way there and back, and the renewal of the token. What the page must remember
// while the browser is at the provider is in sessionStorage, so a sign-in can only be finished in the tab that began it.
import * as api from "./api.js";
import { now } from "./clock.js";
import { originOf, path } from "./path.js";
import { close, open, renewed, session } from "./session.js";

const KEY = "filestore.sign-in";
const AGAIN_MS = 60_000;
const WAIT_MS_MAX = 2 ** 31 - 1; // of setTimeout

// [{ name, label }], none where the cluster is too old to know.
export async function listProviders() {
  try {
    return (await api.get(path`auth/providers`, { token: "" })).providers;
  } catch {
    return [];
  }
}

// Leaves for the provider's page. `isKept`: stay signed in on this browser.
export async function begin(provider, isKept) {
  const body = { flow: "console", origin: location.origin };
  const started = await api.post(path`auth/providers/${provider}/sign-in`, body, { token: "" });
  if (!originOf(started.authorization_url)) throw new Error("The provider's address is not one of a web page.");
  const { attempt, state } = started;
  sessionStorage.setItem(KEY, JSON.stringify({ provider, attempt, state, isKept, back: location.hash }));
  location.assign(started.authorization_url);
}

// Finishes what `begin` began in this tab, with the provider's answer; returns the page (its hash) where that was.
export async function finish(provider, answer) {
  const begun = JSON.parse(sessionStorage.getItem(KEY) || "null");
  sessionStorage.removeItem(KEY);
  if (!begun || begun.provider !== provider || !answer.state || begun.state !== answer.state) {
    const error = new Error("This tab has not begun this sign-in.");
    error.advice = "Start it again from the sign-in page.";
    throw error;
  }
  if (answer.error) throw new Error("The sign-in was declined at the provider.");
  const body = { attempt: begun.attempt, state: begun.state, code: answer.code || "", issuer: answer.iss || "" };
  const signedIn = await api.post(path`auth/providers/${provider}/token`, body, { token: "" });
  const user = await api.get(path`auth/whoami`, { token: signedIn.token });
  open(signedIn.token, user, begun.isKept, renewalOf(provider, signedIn));
  return begun.back;
}

// Tells the provider to forget the session, and signs out here, even if it cannot be told.
export async function leave() {
  const { renewal } = session.get();
  close();
  if (renewal) await api.post(path`auth/providers/${renewal.provider}/sign-out`, { renewal: renewal.text }, { token: "" }).catch(() => {});
}

const renewalOf = (provider, { renewal, renew_at: at }) => (renewal ? { provider, text: renewal, at } : null);

// Renews the token whenever that is due, until the function that it returns is called.
export function keepRenewed() {
  let timer = 0;
  let isOver = false;
  const due = () => new Date(session.get().renewal?.at).getTime() - now();
  const later = (ms) => {
    clearTimeout(timer);
    if (!isOver && session.get().renewal) timer = setTimeout(run, Math.min(Math.max(ms, 0), WAIT_MS_MAX));
  };
  async function run() {
    try {
      // Tabs that share the token renew it once: some providers accept each renewal only once.
      await navigator.locks.request(KEY, async () => {
        if (session.get().renewal && due() <= 0) await renewNow();
      });
      later(due());
    } catch {
      later(AGAIN_MS); // the token is valid until it expires
    }
  }
  const woken = () => document.visibilityState === "visible" && later(due());
  const stop = session.subscribe(() => later(due()));
  document.addEventListener("visibilitychange", woken);
  later(due());
  return () => {
    isOver = true;
    clearTimeout(timer);
    stop();
    document.removeEventListener("visibilitychange", woken);
  };
}

async function renewNow() {
  const { provider, text } = session.get().renewal;
  try {
    const signedIn = await api.post(path`auth/providers/${provider}/renewal`, { renewal: text }, { token: "" });
    if (session.get().renewal?.text !== text) return;
    const { token, roles, groups, expires_at: ends } = signedIn;
    renewed(token, { ...session.get().user, roles, groups, token_expires_at: ends }, renewalOf(provider, signedIn));
  } catch (error) {
    if (![400, 403, 404, 410].includes(error.status)) throw error;
    renewed(session.get().token, session.get().user, null); // the session has ended; the token soon will
  }
}
