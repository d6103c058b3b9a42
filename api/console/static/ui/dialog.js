// Dialogs: `show(draw)` opens one and promises what it is closed with; `confirm` names what is about to go.
import { createStore, html, useEffect, useId, useLayoutEffect, useRef, useState, useStore } from "../html.js";
import { Bar, ErrorBox, Name } from "./parts.js";

const NAMES_SHOWN = 8;
const dialogs = createStore([]);
let counted = 0;

// draw(close) -> the content of a Dialog. Resolves with what `close` is called with; undefined when dismissed.
export function show(draw) {
  return new Promise((resolve) => {
    const id = (counted += 1);
    const close = (value) => {
      dialogs.set((old) => old.filter((each) => each.id !== id));
      resolve(value);
    };
    dialogs.set((old) => [...old, { id, draw, close }]);
  });
}

export function closeAll() {
  for (const { close } of dialogs.get()) close();
}

export function Dialogs() {
  const shown = useStore(dialogs);
  return shown.map(({ id, draw, close }) => html`<${Fragmented} key=${id} draw=${draw} close=${close} />`);
}

const Fragmented = ({ draw, close }) => draw(close);

// Where the dialog came from, or the heading of the page: what is deleted in a dialog takes its button with it, now or later.
function focusAgain(opener) {
  const atHeading = () => document.querySelector("main h1")?.focus({ preventScroll: true });
  if (!opener?.isConnected || opener === document.body) return atHeading();
  opener.addEventListener("blur", () => setTimeout(() => !opener.isConnected && document.activeElement === document.body && atHeading()), { once: true });
  return opener.focus({ preventScroll: true });
}

// A modal dialog. `title`, the content as children, `close`.
export function Dialog({ title, close, children, wide }) {
  const element = useRef(null);
  const id = useId();
  useLayoutEffect(() => {
    const opener = document.activeElement;
    const dialog = element.current;
    dialog.showModal();
    return () => {
      dialog.close(); // until then, nothing outside of it takes the focus
      focusAgain(opener);
    };
  }, []);
  return html`<dialog ref=${element} aria-labelledby=${id} onCancel=${(event) => {
    event.preventDefault();
    close();
  }} onClose=${() => close()}><article class=${wide ? "wide" : ""}><header><h2 id=${id}>${title}</h2>
    <button type="button" class="plain" aria-label="Close" onClick=${() => close()}>✕</button></header>
    ${children}</article></dialog>`;
}

// Does one thing after the other for as long as the dialog is open and nobody stops it. `work`: what `submit` gets.
export async function inTurn(items, act, { signal, tell }) {
  for (const [index, item] of items.entries()) {
    if (signal.aborted) return;
    tell(index, items.length);
    await act(item);
  }
}

// A form in a dialog. `submit(values, work)` is awaited: what it returns closes the dialog, what it raises is shown.
// It may send several requests: `work.signal` is aborted when the dialog goes away, by whatever way, or somebody stops
// it, and none is sent after that; `work.tell(done, total)` shows how far it is, in `words` if there are any, and makes Cancel a button that stops.
// isReady: false while what the form is about is still being read.
export function FormDialog({ title, close, submit, action = "Save", tone = "", children, wide, isReady = true }) {
  const [error, setError] = useState(null);
  const [isBusy, setIsBusy] = useState(false);
  const [progress, setProgress] = useState(null);
  const work = useRef(new AbortController());
  useEffect(() => () => work.current.abort(), []);
  async function send(event) {
    event.preventDefault();
    work.current = new AbortController();
    const { signal } = work.current;
    setIsBusy(true);
    setError(null);
    try {
      const tell = (done, total, words) => (total > 1 || words) && setProgress({ done, total, words });
      close((await submit(Object.fromEntries(new FormData(event.target)), { signal, tell })) ?? true);
    } catch (problem) {
      if (signal.aborted) close();
      setError(problem);
      setIsBusy(false);
      setProgress(null);
    }
  }
  const isStopping = work.current.signal.aborted;
  // What was asked for last is waited for: then it is known what was done.
  function stop() {
    if (!progress || isStopping) return close();
    work.current.abort();
    return setProgress({ ...progress });
  }
  return html`<${Dialog} title=${title} close=${stop} wide=${wide}><form onSubmit=${send}>
    ${children}<${ErrorBox} error=${error} />
    ${progress && html`<${Bar} value=${progress.done} max=${progress.total} label="Progress" />
      <p role="status">${progress.words || `${progress.done.toLocaleString("en")} of ${progress.total.toLocaleString("en")}`}${isStopping ? ", stopping" : ""}</p>`}
    <footer><button type="button" class="outline" onClick=${stop}>${progress ? "Stop" : "Cancel"}</button>
      <button type="submit" class=${tone} aria-busy=${isBusy} disabled=${isBusy || !isReady}>${action}</button></footer>
  </form></${Dialog}>`;
}

// Asks before what cannot be undone, and does it: `run(work)` is awaited in the dialog. `names`: what it is about. `box`: what has to
// be ticked first, if anything.
// Resolves when nothing of it is under way any more, even where the dialog was closed before: then it is known what was done.
export async function confirm({ title, names = [], text, action, run, tone = "danger", box }) {
  let running;
  const answer = await show(
    (close) => html`<${FormDialog} title=${title} close=${close} action=${action} tone=${tone} submit=${(_, work) => (running = run?.(work)) ?? true}>
      ${names.length > 0 && html`<ul class="named">${names
        .slice(0, NAMES_SHOWN)
        .map((name) => html`<li><${Name}>${name}</${Name}></li>`)}
        ${names.length > NAMES_SHOWN && html`<li class="quiet">and ${names.length - NAMES_SHOWN} more</li>`}</ul>`}
      <p>${text}</p>${box && html`<p class="banner warn"><label class="flag"><input type="checkbox" required name="others" /> ${box}</label></p>`}</${FormDialog}>`,
  );
  await Promise.resolve(running).catch(() => {}); // what it raised was shown
  return answer;
}
