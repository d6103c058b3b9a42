// The pages of docs/, as this version has them: for whom the console or an alert sends here. Nobody needs to sign in.
import { html, useEffect, useLayoutEffect, useState } from "../html.js";
import { Mark } from "../layout.js";
import { Blocks, blocksOf, helpAddress, targetOf } from "../markdown.js";
import { useSession } from "../session.js";
import { Empty, ErrorBox, Heading, Loading } from "../ui/parts.js";

const NAME = /^[a-z0-9-]+$/;
const LINK = /\]\(([^)\s]+)\)/g;

async function load(page) {
  if (!NAME.test(page)) return null;
  const answer = await fetch(new URL(`../help/${page}.md`, import.meta.url));
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error(answer.statusText);
  return answer.text();
}

export default function Help({ params, query }) {
  const page = params.page || "index";
  const { user } = useSession();
  const [text, setText] = useState(undefined);
  const [error, setError] = useState(null);
  useEffect(() => {
    load(page).then(setText, () => setError({ message: "The page cannot be loaded.", advice: "The console may have been updated. Reload the page." }));
  }, [page]);
  useLayoutEffect(() => {
    if (!text || !query.at) return;
    const section = document.getElementById(query.at);
    if (section) {
      section.scrollIntoView({ block: "start" });
      section.focus({ preventScroll: true });
      return;
    }
    // Another page has this section, and this one a link to it.
    const link = [...text.matchAll(LINK)].map(([, to]) => targetOf(to, page)).find((to) => to?.at === query.at && to.page !== page);
    if (link) location.replace(helpAddress(link.page, link.at));
  }, [text, query.at]);
  const blocks = text ? blocksOf(text) : [];
  const title = blocks[0]?.kind === "heading" ? blocks[0].text : "Help";
  const shown = html`<${Heading} title=${title}>${page !== "index" && html`<a href="#/help">All pages</a>`}</${Heading}>
    <${ErrorBox} error=${error} />
    ${text === undefined && !error && html`<${Loading} lines=${8} />`}
    ${text === null && html`<${Empty} title="There is no such page."><a href="#/help">See which there are</a></${Empty}>`}
    ${text && html`<article class="help"><${Blocks} blocks=${blocks.slice(1)} page=${page} /></article>`}`;
  if (user) return shown;
  return html`<main class="alone wide"><p><a class="brand" href="#/"><${Mark} />Filestore</a></p>${shown}</main>`;
}
