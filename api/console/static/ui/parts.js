// Small things that every page is made of: states, times, sizes, names, progress, empty and failed.
import { html, useEffect, useId, useLayoutEffect, useRef, useState } from "../html.js";
import { moment, relative, size } from "../format.js";
import { notify } from "./toast.js";

const TONES = {
  available: "good", healthy: "good", ready: "good", active: "good", completed: "good", ok: "good", up: "good",
  leader: "info", follower: "info", uploading: "info", running: "info", pending: "info", learner: "info",
  draining: "warn", degraded: "warn", suspect: "warn", expired: "warn", tombstoned: "warn", paused: "warn",
  unreachable: "bad", unavailable: "bad", down: "bad", failed: "bad", revoked: "bad", deleted: "bad", missing: "bad",
};

// A state in words, with a colour beside: `tone` is good, info, warn, bad or plain; by default by the word.
export function Badge({ state, tone, title, children }) {
  const used = tone || TONES[state] || "plain";
  return html`<span class="badge ${used}" title=${title}>${children || state}</span>`;
}

// A name that somebody gave: whatever is in it stays inside of it.
export const Name = ({ children, title }) => html`<bdi class="name" title=${title ?? children}>${children}</bdi>`;

export const Size = ({ bytes }) =>
  html`<span class="number" title="${bytes.toLocaleString("en")} bytes">${size(bytes)}</span>`;

// A time; `how` is "relative" (with the moment in the title) or "moment".
export function Time({ at, how = "relative", none = "never" }) {
  const [, tick] = useState(0);
  useEffect(() => {
    if (how !== "relative" || !at) return undefined;
    const timer = setInterval(() => document.visibilityState === "visible" && tick((n) => n + 1), 30_000);
    return () => clearInterval(timer);
  }, [how, at]);
  if (!at) return html`<span class="quiet">${none}</span>`;
  return html`<time datetime=${at} title=${moment(at)}>${how === "relative" ? relative(at) : moment(at)}</time>`;
}

// The moment, and on phones, where there is no room for it, how long ago that is.
export const When = ({ at }) => html`<span class="roomy"><${Time} at=${at} how="moment" /></span><span class="brief"><${Time} at=${at} /></span>`;

// `value` of `max`; `label` for screen readers. `tone` as of Badge.
export function Bar({ value, max, label, tone = "info" }) {
  const percent = max > 0 ? Math.min(100, (100 * value) / max) : 0;
  return html`<div class="bar ${tone}" role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax="100"
    aria-valuenow=${Math.floor(percent)}><div style=${{ width: `${percent}%` }}></div></div>`;
}

// Nothing here: `title` says so, the children say what to do.
export const Empty = ({ title, children }) =>
  html`<div class="empty"><p class="title">${title}</p><div>${children}</div></div>`;

// What went wrong and what to do; `retry` adds a button.
export function ErrorBox({ error, retry }) {
  if (!error) return null;
  const id = error.requestId && error.status >= 500 ? html` <small>Request id ${error.requestId}</small>` : "";
  return html`<div class="error" role="alert"><p><strong>${error.message}</strong> ${error.advice || ""}${id}</p>
    ${retry && html`<button type="button" class="small" onClick=${retry}>Try again</button>`}</div>`;
}

// Bars in the place of what is loading, as high as it will be.
export const Loading = ({ lines = 3, label = "Loading" }) =>
  html`<div class="loading" role="status" aria-label=${label}>
    ${Array.from({ length: lines }, () => html`<span></span>`)}</div>`;

// The heading of a page, which gets the focus when the page is opened; children are its actions. `name`: the title of
// the tab, where `title` is more than text.
export function Heading({ title, name = title, sub, children }) {
  const heading = useRef(null);
  useLayoutEffect(() => {
    document.title = `${name} · Filestore`;
  }, [name]);
  return html`<header class="heading"><div class="titles"><h1 tabindex="-1" ref=${heading}>${title}</h1>
    ${sub && html`<p class="sub">${sub}</p>`}</div><div class="actions">${children}</div></header>`;
}

// A box with a heading; `actions` stand beside it.
export function Card({ title, actions, children, class: name = "" }) {
  const id = useId();
  return html`<section class="card ${name}" aria-labelledby=${id}><header><h2 id=${id}>${title}</h2>
    <div class="actions">${actions}</div></header>${children}</section>`;
}

// Facts as a list: rows of [term, value]; those without a value are left out.
export const Facts = ({ rows }) =>
  html`<dl class="facts">${rows
    .filter(([, value]) => value !== "" && value != null && value !== false)
    .map(([term, value]) => html`<div><dt>${term}</dt><dd>${value}</dd></div>`)}</dl>`;

// Text to copy: `label` names it. Where there is no clipboard, the text is selected.
export function Copy({ text, label = "Copy", shown, class: name = "small outline" }) {
  const [isCopied, setIsCopied] = useState(false);
  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
      setIsCopied(true);
      setTimeout(() => setIsCopied(false), 2000);
    } catch {
      notify("The browser does not allow copying here. Select the text and copy it yourself.", "warn");
    }
  }
  return html`${shown && html`<code class="copied">${text}</code> `}<button type="button" class=${name}
    aria-label=${isCopied ? `${label}: copied` : label} onClick=${copy}>${isCopied ? "Copied" : "Copy"}</button>`;
}

// A button that waits for what it does, and shows what fails. `tone`: "primary", "danger", or "" for a plain one.
export function Action({ run, children, tone = "", label, disabled, size: how = "small", onDone }) {
  const [isBusy, setIsBusy] = useState(false);
  async function click() {
    if (isBusy) return;
    setIsBusy(true);
    try {
      const done = await run();
      onDone?.(done);
    } catch (error) {
      if (error) notify(`${error.message} ${error.advice || ""}`, "bad");
    } finally {
      setIsBusy(false);
    }
  }
  const look = tone === "primary" ? "" : tone === "danger" ? "danger" : "outline";
  // Not disabled while it is busy: it would lose the focus, to which a dialog that it opens returns.
  return html`<button type="button" class="${how} ${look}" aria-label=${label} aria-busy=${isBusy} aria-disabled=${isBusy}
    disabled=${disabled} onClick=${click}>${children}</button>`;
}
