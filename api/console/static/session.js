// Who is signed in: the token, in sessionStorage of this tab only, and what the API says of its user.
import { createStore, useStore } from "./html.js";

const KEY = "filestore.token";

// { token, user, ended }: `user` as GET /auth/whoami has it, null until then; `ended` says why nobody is in.
export const session = createStore({ token: sessionStorage.getItem(KEY) || "", user: null, ended: "" });

export const useSession = () => useStore(session);

export const token = () => session.get().token;

export const isAdmin = () => Boolean(session.get().user?.roles.includes("admin"));

export function open(newToken, user) {
  sessionStorage.setItem(KEY, newToken);
  session.set({ token: newToken, user, ended: "" });
}

export function describe(user) {
  session.set((old) => ({ ...old, user }));
}

// `ended`: what to tell whoever has to sign in again; "" after signing out.
export function close(ended = "") {
  sessionStorage.removeItem(KEY);
  session.set((old) => ({ token: "", user: null, ended, was: old.user?.user_id }));
}

// A token out of what somebody pasted or dropped: the line may begin with "Bearer", and have spaces around.
export function tokenIn(text) {
  const found = /[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}/.exec(text);
  return found ? found[0] : "";
}
