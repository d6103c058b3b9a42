// Dialogs: `show(draw)` opens one and promises what it is closed with; `confirm` names what is about to go.
import { createStore, html, useId, useLayoutEffect, useRef, useState, useStore } from "../html.js";
import { ErrorBox, Name } from "./parts.js";

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

// A modal dialog. `title`, the content as children, `close`.
export function Dialog({ title, close, children, wide }) {
  const element = useRef(null);
  const id = useId();
  useLayoutEffect(() => {
    const opener = document.activeElement;
    element.current.showModal();
    return () => opener?.isConnected && opener.focus();
  }, []);
  return html`<dialog ref=${element} aria-labelledby=${id} onCancel=${(event) => {
    event.preventDefault();
    close();
  }}><article class=${wide ? "wide" : ""}><header><h2 id=${id}>${title}</h2>
    <button type="button" class="plain" aria-label="Close" onClick=${() => close()}>✕</button></header>
    ${children}</article></dialog>`;
}

// A form in a dialog. `submit(values)` is awaited: what it returns closes the dialog, what it raises is shown.
export function FormDialog({ title, close, submit, action = "Save", tone = "", children, wide }) {
  const [error, setError] = useState(null);
  const [isBusy, setIsBusy] = useState(false);
  async function send(event) {
    event.preventDefault();
    setIsBusy(true);
    setError(null);
    try {
      close((await submit(Object.fromEntries(new FormData(event.target)))) ?? true);
    } catch (problem) {
      setError(problem);
      setIsBusy(false);
    }
  }
  return html`<${Dialog} title=${title} close=${close} wide=${wide}><form onSubmit=${send}>
    ${children}<${ErrorBox} error=${error} />
    <footer><button type="button" class="outline" onClick=${() => close()}>Cancel</button>
      <button type="submit" class=${tone} aria-busy=${isBusy} disabled=${isBusy}>${action}</button></footer>
  </form></${Dialog}>`;
}

// Asks before what cannot be undone, and does it: `run()` is awaited in the dialog. `names`: what it is about.
export function confirm({ title, names = [], text, action, run, tone = "danger" }) {
  return show(
    (close) => html`<${FormDialog} title=${title} close=${close} action=${action} tone=${tone} submit=${run || (() => true)}>
      ${names.length > 0 && html`<ul class="named">${names
        .slice(0, NAMES_SHOWN)
        .map((name) => html`<li><${Name}>${name}</${Name}></li>`)}
        ${names.length > NAMES_SHOWN && html`<li class="quiet">and ${names.length - NAMES_SHOWN} more</li>`}</ul>`}
      <p>${text}</p></${FormDialog}>`,
  );
}
