// Who is signed in: the token, and what the API says of its user. The token is in sessionStorage, for this tab only, or in
// localStorage if its user stays signed in on this browser: then all tabs of this address use it, until one signs out.
import { createStore, useStore } from "./html.js";

const KEY = "filestore.token";
const RENEWAL = "filestore.renewal"; // of a sign-in with a provider: what renews the token

// What localStorage has: { token, user_id, renewal }, or null.
function readKept() {
  try {
    return JSON.parse(localStorage.getItem(KEY) || "null");
  } catch {
    return null;
  }
}

function initial() {
  const own = sessionStorage.getItem(KEY);
  const kept = own ? null : readKept();
  const renewal = own ? JSON.parse(sessionStorage.getItem(RENEWAL) || "null") : kept?.renewal || null;
  return { token: own || kept?.token || "", isKept: Boolean(kept), user: null, ended: "", renewal };
}

// { token, isKept, user, ended, renewal }: `user` as GET /auth/whoami has it, null until then; `ended` says why nobody is signed
// in; `renewal`: { provider, text, at }, with which providers.js renews the token, or null.
export const session = createStore(initial());

export const useSession = () => useStore(session);

export const token = () => session.get().token;

export const isAdmin = () => Boolean(session.get().user?.roles.includes("admin"));

// `isKept`: stay signed in on this browser. Where it stores nothing, the token stays in this tab.
export function open(newToken, user, isKept = session.get().isKept, renewal = null) {
  let isStored = false;
  try {
    if (isKept) localStorage.setItem(KEY, JSON.stringify({ token: newToken, user_id: user.user_id, renewal }));
    isStored = isKept;
  } catch {
    // Storage is forbidden or full.
  }
  if (isStored) forgetInTab();
  else {
    sessionStorage.setItem(KEY, newToken);
    sessionStorage.setItem(RENEWAL, JSON.stringify(renewal));
  }
  session.set({ token: newToken, isKept: isStored, user, ended: "", renewal });
}

function forgetInTab() {
  sessionStorage.removeItem(KEY);
  sessionStorage.removeItem(RENEWAL);
}

// The same user goes on with another token, which is kept as the one before.
export const renewed = (newToken, user, renewal) => open(newToken, user, session.get().isKept, renewal);

export function describe(user) {
  session.set((old) => ({ ...old, user }));
}

// `ended`: what to tell the user who has to sign in again; "" after signing out. If the token is kept, all tabs are signed out.
export function close(ended = "") {
  forgetInTab();
  if (session.get().isKept && readKept()?.token === token()) localStorage.removeItem(KEY);
  session.set((old) => ({ token: "", isKept: false, user: null, ended, was: old.user?.user_id, renewal: null }));
}

// Another tab signed in or out, or renewed the token. A tab with a token of its own keeps that.
addEventListener("storage", (event) => {
  if (event.key !== KEY && event.key !== null) return;
  const { token: used, isKept } = session.get();
  if (used && !isKept) return;
  const kept = readKept();
  if (!kept) {
    if (isKept) close("You signed out in another tab of this browser.");
  } else if (kept.token !== used) {
    session.set((old) => ({ token: kept.token, isKept: true, user: old.user?.user_id === kept.user_id ? old.user : null, ended: "", renewal: kept.renewal || null }));
  }
});

// A token out of what somebody pasted or dropped: the line may begin with "Bearer", and have spaces around.
export function tokenIn(text) {
  const found = /[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}/.exec(text);
  return found ? found[0] : "";
}
