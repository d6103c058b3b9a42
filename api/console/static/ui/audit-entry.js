// An entry of the audit log in words. What it was done to is text in which ids stand: those of files and buckets lead there.
import { html } from "../html.js";
import { address } from "../path.js";
import { Badge, Name, Time } from "./parts.js";

const PLACE = /\b(file|bucket) ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b/;
const PAGES = { file: (id) => address`/file/${id}`, bucket: (id) => address`/buckets/${id}` };

export const didWhat = (entry) => entry.action.replaceAll("_", " ");

export function Target({ text }) {
  const found = PLACE.exec(text);
  if (!found) return html`<${Name}>${text}</${Name}>`;
  const [whole, what, id] = found;
  const [before, after] = [text.slice(0, found.index), text.slice(found.index + whole.length)];
  return html`${before && html`<${Name}>${before}</${Name}>`}<a href=${PAGES[what](id)} title=${id}>${what} …${id.slice(-6)}</a>${after && html`<${Name}>${after}</${Name}>`}`;
}

// One line of a list of events.
export const Event = ({ entry }) => html`<li class="spread"><span class="one-line"><${Name}>${entry.principal === "-" ? "nobody known" : entry.principal}</${Name}>
  <span class="quiet">${didWhat(entry)}</span> <${Target} text=${entry.target} /></span>
  <span class="right">${entry.outcome !== "ok" && html`<${Badge} tone="warn">${entry.outcome}</${Badge}>`}<${Time} at=${entry.time} /></span></li>`;
