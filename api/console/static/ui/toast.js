// Short notices at the lower edge; screen readers are told them. `tone`: good, info, warn, bad.
import { createStore, html, useStore } from "../html.js";

const SHOWN_MS = 6000;
const NOTICES_MAX = 4;
const notices = createStore([]);
let counted = 0;

export function notify(text, tone = "info") {
  const notice = { id: (counted += 1), text, tone };
  notices.set((old) => [...old.slice(1 - NOTICES_MAX), notice]);
  if (tone !== "bad") setTimeout(() => dismiss(notice.id), SHOWN_MS); // what went wrong stays until it is read
}

function dismiss(id) {
  notices.set((old) => old.filter((notice) => notice.id !== id));
}

export function Notices() {
  const shown = useStore(notices);
  return html`<div class="notices" role="region" aria-label="Notices" aria-live="polite">${shown.map(
    (notice) => html`<div key=${notice.id} class="notice ${notice.tone}"><span>${notice.text}</span>
      <button type="button" class="plain" aria-label="Dismiss this notice" onClick=${() => dismiss(notice.id)}>✕</button></div>`,
  )}</div>`;
}
