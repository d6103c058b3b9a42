// Requests to /api/v1 of the process that served the page, or of another node once that has died, with the token of the session; errors say what to do; lists; polling.
import { useCallback, useEffect, useRef, useState } from "./html.js";
import * as clock from "./clock.js";
import { counted } from "./format.js";
import { NotFound, Path } from "./path.js";
import * as place from "./place.js";
import * as session from "./session.js";

const PAGE_ROWS = 1000;
export const ROWS_MAX = 20_000; // of a list in a page; beyond, the beginning of a name narrows it
const ANSWER_MS_MAX = 30_000; // for the head of an answer to a question; a process that has no majority says so in 5 s
const POLL_MS_MIN = 1000;
const POLL_MS_MAX = 60_000;

const ADVICE = {
  unauthorized: "Sign in again.",
  forbidden: "Ask its owner, or an administrator, for permission.",
  not_found: "It may have been deleted. Go back to the list.",
  gone: "The link has expired. Ask the person who shared it for a new one.",
  conflict: "Read the details, then try again.",
  not_available: "Its upload is not complete. Wait, or resume it under Uploads.",
  precondition_failed: "It was changed in the meantime. Reload the page.",
  payload_too_large: "Delete files that are not needed, or ask for a larger quota.",
  insufficient_storage: "No node has room. Tell an administrator.",
  rate_limited: "Wait a moment, then try again.",
  unavailable: "The cluster cannot do this now. Try again in a moment. If this does not help, tell an administrator.",
  internal: "This is an internal error. Tell an administrator and give them the request id.",
  unanswered: "The request may have succeeded. Check the result before you try again. The next request goes to another node.",
  network: "No node can be reached. Check your network, or open the console of another node.",
};

export class ApiError extends Error {
  // code and status as the API has them (status 0: no answer came); `message` for people; `advice`: what to do.
  // isRefused: with the token that was sent it cannot be had, however often one asks.
  constructor(status, code, message, requestId = "", { waitS = 0, isRefused = status === 401 } = {}) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.requestId = requestId;
    this.isRefused = isRefused;
    this.waitS = waitS;
    this.advice = waitS > 1 && status === 429 ? `Wait ${counted(waitS, "second")}, then try again.`
      : ADVICE[code] || (status >= 500 ? ADVICE.internal : "");
  }
}

export async function errorOf(response) {
  const id = response.headers.get("X-Request-Id") || "";
  const more = { waitS: Number(response.headers.get("Retry-After")) || 0, isRefused: response.status === 401 || response.headers.has("WWW-Authenticate") };
  try {
    const { code, error, details } = await response.json();
    return new ApiError(response.status, code, details || error, id, more);
  } catch {
    return new ApiError(response.status, "", `The answer was ${response.status}.`, id, more);
  }
}

// The first answer: of whom this page asks now, then of every other node in turn, for what only reads. What changes
// something is asked once, as it may have been done: whoever asks again reaches another node. `from`: only that one.
async function answered(target, init, { signal, from }) {
  for (let left = init.method === "GET" && !from ? place.originsCount : 1; ; left -= 1) {
    const whom = from || place.origin();
    const waiting = new AbortController();
    const timer = init.method === "GET" ? setTimeout(() => waiting.abort(), ANSWER_MS_MAX) : 0;
    try {
      const response = await fetch(`${whom}${target}`, { ...init, signal: signal ? AbortSignal.any([signal, waiting.signal]) : waiting.signal });
      clock.learn(response.headers.get("Date"));
      return response;
    } catch (error) {
      if (signal?.aborted) throw error;
      if (!from) await place.leave(whom);
      if (left > 1 && place.origin() !== whom) continue;
      if (!from) dispatchEvent(new Event("filestore:lost"));
      const isAsked = init.method === "GET";
      throw new ApiError(0, isAsked ? "network" : "unanswered", "No response was received.");
    } finally {
      clearTimeout(timer);
    }
  }
}

// One request to what `path` of path.js made. `body` is sent as JSON, `content` as it is; `token` in place of the session's ("" for none); `from`: the origin of the
// member that is asked, and no other. Raises ApiError.
export async function request(method, path, { body, content, query, headers, signal, token, raw, from } = {}) {
  if (!(path instanceof Path)) throw new TypeError("a request needs a Path");
  const search = new URLSearchParams(Object.entries(query || {}).filter(([, v]) => v !== "" && v != null));
  if (paced.has(signal)) await nextSlot();
  const sent = new Headers(headers || {});
  const used = token ?? session.token();
  if (used) sent.set("Authorization", `Bearer ${used}`);
  if (body !== undefined) sent.set("Content-Type", "application/json");
  const target = `${path.url}${search.size ? `?${search}` : ""}`;
  const sentBody = body === undefined ? content : JSON.stringify(body);
  const response = await answered(target, { method, headers: sent, body: sentBody, credentials: "omit", cache: "no-store" }, { signal, from });
  dispatchEvent(new Event("filestore:found"));
  if (!response.ok) {
    const error = await errorOf(response);
    if (error.isRefused && token === undefined && used && used === session.token()) {
      session.close("Your token has expired or was revoked. Sign in again to continue where you were.");
    }
    throw error;
  }
  if (raw) return response;
  return response.json();
}

export const get = (path, options) => request("GET", path, options);
export const post = (path, body = {}, options = {}) => request("POST", path, { ...options, body });
export const patch = (path, body, options = {}) => request("PATCH", path, { ...options, body });
export const put = (path, body = {}, options = {}) => request("PUT", path, { ...options, body });
export const del = (path, options) => request("DELETE", path, options);

// The record with this value in `field`. Raises NotFound if the answer is about something else.
export async function getOne(path, field, value, options) {
  const record = await get(path, options);
  if (record[field] !== value) throw new NotFound("The response is for another record.");
  return record;
}

// Every row of a list, page after page: `onRows(rows, isAll)` is told all that there are so far.
export async function list(path, field, { query, signal, onRows, rowsMax = ROWS_MAX } = {}) {
  let rows = [];
  let cursor = "";
  for (;;) {
    const page = await get(path, { query: { ...query, limit: PAGE_ROWS, cursor }, signal });
    rows = rows.concat(page[field]);
    cursor = page.next_cursor || "";
    const isAll = !cursor || rows.length >= rowsMax;
    onRows?.(rows, isAll);
    if (isAll) return { rows, isCut: Boolean(cursor) };
  }
}

// What a page asks for. Answers are shown at once and asked for again with a growing pause while nothing
// changes and the tab is visible; never more than one such request a second in this page. What failed is asked for
// again even where `isLive` is false, until there is an answer.
// ask(signal) -> promise. Returns { data, error, isLoading, refresh }.
export function usePolled(ask, dependencies, { everyMs = 5000, isLive = true } = {}) {
  const [state, setState] = useState({ data: undefined, error: null, isLoading: true });
  const latest = useRef({ ask, isLive });
  latest.current = { ask, isLive };
  const turn = useRef(() => {});
  useEffect(() => {
    const aborting = new AbortController();
    let timer = 0;
    let pauseMs = everyMs;
    let seen = "";
    let running = null; // the promise of the request under way
    const later = () => {
      clearTimeout(timer);
      if ((latest.current.isLive || hasFailed) && !aborting.signal.aborted) timer = setTimeout(() => run(true), pauseMs);
    };
    function run(isPolled) {
      if (aborting.signal.aborted || (isPolled && document.visibilityState !== "visible")) return undefined;
      return (running ||= askOnce(isPolled).finally(() => {
        running = null;
        later();
      }));
    }
    async function askOnce(isPolled) {
      try {
        if (isPolled) paced.add(aborting.signal);
        else paced.delete(aborting.signal);
        const data = await latest.current.ask(aborting.signal);
        const text = JSON.stringify(data);
        pauseMs = text === seen ? Math.min(pauseMs * 1.5, POLL_MS_MAX) : everyMs;
        if (!aborting.signal.aborted && (text !== seen || !isPolled || hasFailed)) {
          setState({ data, error: null, isLoading: false });
        }
        seen = text;
        hasFailed = false;
      } catch (error) {
        if (aborting.signal.aborted) return;
        pauseMs = Math.min(pauseMs * 2, POLL_MS_MAX);
        hasFailed = true;
        setState((old) => ({ data: old.data, error, isLoading: false }));
      }
    }
    let hasFailed = false;
    turn.current = async () => {
      pauseMs = everyMs;
      paced.delete(aborting.signal);
      await running; // whose answer may be older than what this caller has done
      return run(false);
    };
    const woken = () => document.visibilityState === "visible" && (latest.current.isLive || hasFailed) && run(true);
    document.addEventListener("visibilitychange", woken);
    setState((old) => ({ data: undefined, error: null, isLoading: true, was: old.data }));
    run(false);
    return () => {
      aborting.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", woken);
    };
  }, dependencies);
  const refresh = useCallback(() => turn.current(), []);
  return { ...state, refresh };
}

let lastSlot = 0;
const paced = new WeakSet(); // the signals of what is asked again: each of their requests waits for its second

// Waits until a second has passed since the last polled request of this page.
async function nextSlot() {
  const now = performance.now();
  const at = Math.max(now, lastSlot + POLL_MS_MIN);
  lastSlot = at;
  if (at > now) await new Promise((done) => setTimeout(done, at - now));
}

// A list that is loaded whole and refreshed: { rows, isCut, error, isLoading, refresh, change }.
// `change(rows => rows)` shows at once what an action has done.
export function useList(path, field, query = {}, { everyMs = 8000 } = {}) {
  const [rows, setRows] = useState([]);
  const [isCut, setIsCut] = useState(false);
  const key = JSON.stringify([path, field, query]);
  const isFirst = useRef(true);
  useEffect(() => {
    isFirst.current = true;
    setRows([]);
  }, [key]);
  const polled = usePolled(
    async (signal) => {
      const onRows = isFirst.current ? (some) => !signal.aborted && setRows(some) : undefined;
      const all = await list(path, field, { query, signal, onRows });
      isFirst.current = false;
      if (!signal.aborted) {
        setRows(all.rows);
        setIsCut(all.isCut);
      }
      // A long list is not asked for again every few seconds: its pages would be many requests.
      return all.rows.length > PAGE_ROWS ? all.rows.length : all.rows;
    },
    [key],
    { everyMs, isLive: rows.length <= PAGE_ROWS },
  );
  return { ...polled, rows, isCut, change: setRows };
}
