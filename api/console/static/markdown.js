// The pages of docs/ as elements: the part of Markdown that they use. Text stays text: nothing in it becomes markup.
import { h, html } from "./html.js";
import { address, originOf } from "./path.js";

const PAGE_LINK = /^([a-z0-9-]+)?(?:\.md)?(?:#([\w-]+))?$/;
const INLINE = /`([^`]+)`|\*\*(.+?)\*\*|\*([^\s*][^*]*)\*|!?\[([^\]]*)\]\(([^)\s]+)\)/g;

// As GitHub and MkDocs make the id of a heading.
export const slug = (text) => text.toLowerCase().replaceAll(/[^\w\s-]/g, "").trim().replaceAll(/\s+/g, "-");

// Where a link leads: { page, at } for a page of docs/, { url } for another site; null for what is not served here.
export function targetOf(link, page) {
  if (originOf(link)) return { url: link };
  const found = PAGE_LINK.exec(link);
  return found ? { page: found[1] || page, at: found[2] || "" } : null;
}

function Link({ text, link, page }) {
  const target = targetOf(link, page);
  if (!target) return text;
  if (target.url) return h("a", { href: target.url, rel: "noreferrer" }, text);
  return h("a", { href: helpAddress(target.page, target.at) }, text);
}

export const helpAddress = (page, at = "") => (at ? address`/help/${page}?at=${at}` : address`/help/${page}`);

// The section of the runbook about a finding or an alert: the table of the first page says on which page it is.
export const runbookAddress = (name) => helpAddress("runbook", name.toLowerCase());

function inline(text, page) {
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(INLINE)) {
    const [whole, code, bold, emphasised, label, link] = found;
    parts.push(text.slice(end, found.index));
    if (code) parts.push(html`<code>${code}</code>`);
    else if (bold) parts.push(html`<strong>${inline(bold, page)}</strong>`);
    else if (emphasised) parts.push(html`<em>${emphasised}</em>`);
    else if (!whole.startsWith("!")) parts.push(html`<${Link} text=${inline(label, page)} link=${link} page=${page} />`);
    end = found.index + whole.length;
  }
  return [...parts, text.slice(end)];
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));

// The blocks of a text: { kind, text | lines | items | rows }.
export function blocksOf(text) {
  const lines = text.replaceAll(/<!--[\s\S]*?-->/g, "").split("\n");
  const blocks = [];
  let at = 0;
  const until = (isEnd) => {
    const from = at;
    while (at < lines.length && !isEnd(lines[at])) at += 1;
    return lines.slice(from, at);
  };
  while (at < lines.length) {
    const line = lines[at];
    const heading = /^(#{1,4}) (.+)$/.exec(line);
    const item = ITEM.exec(line);
    if (line.trim() === "") at += 1;
    else if (heading) {
      blocks.push({ kind: "heading", level: heading[1].length, text: heading[2] });
      at += 1;
    } else if (/^\s*```/.test(line)) {
      at += 1;
      blocks.push({ kind: "code", lines: until((each) => /^\s*```/.test(each)) });
      at += 1;
    } else if (line.startsWith("|")) {
      const [head, , ...rows] = until((each) => !each.startsWith("|")).map(cells);
      blocks.push({ kind: "table", head, rows });
    } else if (item) blocks.push({ kind: "list", start: Number.parseInt(item[1], 10), items: items(until((each) => /^\S/.test(each) && !ITEM.test(each))) });
    else blocks.push({ kind: "text", text: until((each) => each.trim() === "" || /^(#|\||\s*```)/.test(each) || ITEM.test(each)).join(" ") });
  }
  return blocks;
}

const ITEM = /^([-*]|\d+\.) +/;

// The items of a list: each a text with its indented blocks.
function items(lines) {
  const found = [];
  for (const line of lines) {
    if (ITEM.test(line)) found.push([line.replace(ITEM, "")]);
    else found.at(-1).push(line.replace(/^ {1,3}/, ""));
  }
  return found.map((each) => blocksOf(each.join("\n")));
}

function Block({ block, page }) {
  const { kind, text, lines } = block;
  if (kind === "heading") return h(`h${block.level}`, { id: slug(text), tabindex: -1 }, inline(text, page));
  if (kind === "code") return html`<pre class="text" tabindex="0">${lines.join("\n")}</pre>`;
  if (kind === "table") {
    return html`<div class="scrolled" tabindex="0"><table><thead><tr>${block.head.map((cell) => html`<th scope="col">${inline(cell, page)}</th>`)}</tr></thead>
      <tbody>${block.rows.map((row) => html`<tr>${row.map((cell) => html`<td>${inline(cell, page)}</td>`)}</tr>`)}</tbody></table></div>`;
  }
  if (kind === "list") return h(block.start ? "ol" : "ul", { start: block.start || undefined }, block.items.map((each) => html`<li><${Blocks} blocks=${each} page=${page} isItem=${true} /></li>`));
  return html`<p>${inline(text, page)}</p>`;
}

// Of an item of a list, the first text is no paragraph of its own.
export const Blocks = ({ blocks, page, isItem }) => blocks.map((block, index) => isItem && index === 0 && block.kind === "text"
  ? inline(block.text, page) : html`<${Block} block=${block} page=${page} />`);
