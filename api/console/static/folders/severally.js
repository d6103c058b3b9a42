// The same request for each of many files: some at once, until somebody stops it; what failed is told in the end.
import { html } from "../html.js";
import { counted } from "../format.js";
import { Dialog, show } from "../ui/dialog.js";
import { Located } from "./listing.js";

const AT_ONCE = 4;
const SHOWN_MAX = 200;

// -> [{ item, error }] of those that failed. Raises what all others would fail with, too: no node answers, or the token ended.
export async function severally(items, act, { signal, tell }) {
  const failed = [];
  let [next, done, end] = [0, 0, null];
  const work = async () => {
    while (next < items.length && !signal.aborted && !end) {
      const item = items[next];
      next += 1;
      try {
        await act(item);
      } catch (error) {
        if (error.isRefused || !error.status) end = error;
        else failed.push({ item, error });
      }
      done += 1;
      tell(done, items.length);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  if (end) throw end;
  return failed;
}

// Shows what failed, a line each, if anything did.
export async function report(title, failed) {
  if (failed.length === 0) return;
  await show((close) => html`<${Dialog} title=${title} close=${() => close()} wide>
    <ul class="chosen failed">${failed.slice(0, SHOWN_MAX).map(({ item, error }) => html`<li><${Located} name=${item.filename} folder=${item.path} />
      <span class="quiet">${error.message}</span></li>`)}</ul>
    ${failed.length > SHOWN_MAX && html`<p>And ${counted(failed.length - SHOWN_MAX, "more file")}.</p>`}
    <footer><button type="button" onClick=${() => close()}>Close</button></footer></${Dialog}>`);
}
