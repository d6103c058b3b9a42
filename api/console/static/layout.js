// What surrounds every page: the navigation, who is signed in, the theme; and what stops somebody from going on.
import { html, useEffect, useState } from "./html.js";
import * as api from "./api.js";
import { now } from "./clock.js";
import { path } from "./path.js";
import { look, nodeConsole, otherConsoles, servesContent } from "./place.js";
import { go } from "./router.js";
import { NAVIGATION } from "./routes.js";
import { leave } from "./providers.js";
import { isAdmin, useSession, open, session } from "./session.js";
import { relative } from "./format.js";
import { Menu } from "./ui/menu.js";
import { notify } from "./ui/toast.js";
import { Badge, Time } from "./ui/parts.js";

const RENEWED_S = 12 * 3600;
const SOON_MS = 30 * 60 * 1000;

export function Layout({ path, badge, children }) {
  const [isOpen, setIsOpen] = useState(false);
  useEffect(() => setIsOpen(false), [path]);
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to content</a>
    <header class="top"><button type="button" class="plain burger" aria-label="Navigation" aria-expanded=${isOpen}
        aria-controls="navigation" onClick=${() => setIsOpen(!isOpen)}>☰</button>
      <a class="brand" href="#/"><${Mark} />Filestore</a><span class="grow"></span><${ThemeMenu} /><${UserMenu} /></header>
    <div class="frame"><nav id="navigation" aria-label="Pages" class=${isOpen ? "open" : ""}>
      ${NAVIGATION.filter((group) => !group.admin || isAdmin()).map(
        (group) => html`<p class="group">${group.title}</p><ul>${group.links.map(
          ([address, text]) => html`<li><a href="#${address}" aria-current=${isHere(address, path) ? "page" : undefined}>
            ${text}<${Counts} ...${badge?.[address]} /></a></li>`,
        )}</ul>`,
      )}</nav>
      <main id="main" tabindex="-1"><${Banners} />${children}</main></div>`;
}

// Beside a page of the navigation: what is under way there, and what was interrupted.
const Counts = ({ busy = 0, stopped = 0 }) => html`${busy > 0 && html` <${Badge} tone="info" title="under way">${busy}</${Badge}>`}${
  stopped > 0 && html` <${Badge} tone="warn" title="stopped before the end">${stopped} stopped</${Badge}>`}`;

function isHere(address, path) {
  return address === "/" ? path === "/" : path === address || path.startsWith(`${address}/`);
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

export const Mark = () => html`<svg viewBox="0 0 32 32" width="24" height="24" aria-hidden="true"><rect width="32"
  height="32" rx="7" /><g><ellipse cx="16" cy="9.5" rx="8" ry="3.2" /><path
  d="M8 9.500v6.500c0 1.800 3.600 3.200 8 3.200s8-1.400 8-3.200v-6.500M8 16v6.500c0 1.800 3.600 3.200 8 3.200s8-1.400 8-3.200v-6.500" /></g></svg>`;

// Another token for 12 hours with the one that is at hand.
export async function renew() {
  const minted = await api.post(path`auth/token`, { ttl_seconds: RENEWED_S });
  open(minted.token, { ...session.get().user, roles: minted.roles, groups: minted.groups, token_expires_at: minted.expires_at });
  notify(`Your token is renewed. It expires ${relative(minted.expires_at)}.`, "good");
}

function UserMenu() {
  const { user, renewal } = useSession();
  if (!user) return null;
  const role = isAdmin() ? "administrator" : user.groups.length > 0 ? `user in ${user.groups.join(", ")}` : "user";
  return html`<div class="who"><span class="user"><bdi>${user.user_id}</bdi><small>${role}</small></span>
    <${Menu} label="Your account" text="▾" items=${[
      !renewal && { text: `Renew the token (expires ${relative(user.token_expires_at)})`, run: renew },
      { text: "Where you are signed in", run: () => go("/sessions") },
      { text: "Help", run: () => go("/help") },
      { text: "Sign out", run: () => leave() },
    ].filter(Boolean)} /></div>`;
}

export function ThemeMenu() {
  const choose = (theme) => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    try {
      if (theme) localStorage.setItem("filestore.theme", theme);
      else localStorage.removeItem("filestore.theme");
    } catch {
      notify("This browser does not store settings here. The theme applies until you leave the page.", "info");
    }
  };
  return html`<${Menu} label="Theme" text="◐" items=${[
    { text: "Light", run: () => choose("light") },
    { text: "Dark", run: () => choose("dark") },
    { text: "As the system", run: () => choose("") },
  ]} />`;
}

function Banners() {
  const { user, renewal } = useSession();
  const [at, setAt] = useState(now());
  const [isAway, setIsAway] = useState(!navigator.onLine);
  const [elsewhere, setElsewhere] = useState("");
  useEffect(() => {
    const timer = setInterval(() => {
      setAt(now());
      look();
    }, 30_000);
    const moved = ({ detail }) => setElsewhere(detail);
    const lost = () => setIsAway(true);
    const back = () => setIsAway(false);
    addEventListener("filestore:lost", lost);
    addEventListener("filestore:found", back);
    addEventListener("filestore:moved", moved);
    return () => {
      clearInterval(timer);
      removeEventListener("filestore:lost", lost);
      removeEventListener("filestore:found", back);
      removeEventListener("filestore:moved", moved);
    };
  }, []);
  const leftMs = user ? new Date(user.token_expires_at).getTime() - at : Infinity;
  const others = otherConsoles();
  const also = others.length > 0 && html`The console is also at ${others.map((url, at) => html`${at > 0 ? ", " : ""}
    <a href=${url} rel="noreferrer">${new URL(url).host}</a>`)}; sign in there with the same token.`;
  return html`${!servesContent && html`<p class="banner">This page is served by a coordinator, which has the records but not the
      content. To upload or to open files, <a href=${nodeConsole()}>open the console of a node</a>.</p>`}
    ${leftMs < SOON_MS && !renewal && html`<p class="banner warn">Your token expires <${Time} at=${user.token_expires_at} />.
      <button type="button" class="small" onClick=${() => renew().catch((e) => notify(e.message, "bad"))}>Renew it</button></p>`}
    ${isAway ? html`<p class="banner bad" role="alert">No node answers. The console keeps trying. ${also}</p>`
      : elsewhere && html`<p class="banner warn" role="alert">The ${servesContent ? "node" : "coordinator"} that served this page does not answer: ${new URL(elsewhere).host} does
        its work meanwhile, for uploads too. Do not load the page anew. ${also}</p>`}`;
}
