// The console: which page is shown, and whether somebody is signed in for it.
import { html, render, useEffect, useErrorBoundary, useLayoutEffect, useState } from "./html.js";
import * as api from "./api.js";
import { Layout } from "./layout.js";
import { path } from "./path.js";
import { match, useRoute } from "./router.js";
import { ROUTES } from "./routes.js";
import { keepRenewed } from "./providers.js";
import { describe, isAdmin, useSession } from "./session.js";
import { SignIn } from "./pages/sign-in.js";
import { DropZone } from "./uploads/drop.js";
import { useBusyCount, useStoppedCount } from "./uploads/counts.js";
import { Dialogs, closeAll } from "./ui/dialog.js";
import { Notices } from "./ui/toast.js";
import { Empty, ErrorBox, Heading, Loading } from "./ui/parts.js";

const LOAD_ALL_MS = 3000;

// Every page is here before it is needed: it still opens when the node that served this one has died.
function loadAll() {
  for (const [, load] of ROUTES) load().catch(() => {});
  import("./vendor/tus.js").catch(() => {});
  import("./vendor/client-zip.js").catch(() => {});
}

function App() {
  const { token, user, isKept } = useSession();
  const route = useRoute();
  useLayoutEffect(() => closeAll(), [route.path, user?.user_id]); // the next user may be somebody else; before they can open one
  const found = match(ROUTES, route.path);
  const { isPublic, isHelp } = found?.route[2] || {};
  const badge = { "/uploads": { busy: useBusyCount(), stopped: useStoppedCount(user?.user_id) } };
  useEffect(() => {
    // The token was renewed in another tab: until when is it valid?
    if (user && isKept) api.get(path`auth/whoami`).then(describe, () => {});
  }, [token]);
  useEffect(() => (token ? keepRenewed() : undefined), [Boolean(token)]);
  useEffect(() => {
    if (!user) return undefined;
    const timer = setTimeout(loadAll, LOAD_ALL_MS);
    return () => clearTimeout(timer);
  }, [user?.user_id]);
  if (isPublic || (isHelp && !user)) return html`<${Page} key=${route.path} found=${found} query=${route.query} /><${Notices} />`;
  if (!token) return html`<${SignIn} /><${Notices} />`;
  if (!user) return html`<${Recognising} />`;
  return html`<${Layout} path=${route.path} badge=${badge}>${page(found, route)}</${Layout}>
    <${DropZone} /><${Dialogs} /><${Notices} />`;
}

function page(found, route) {
  if (!found) {
    return html`<${Heading} title="No such page" /><${Empty} title="There is no page at this address.">
      <a href="#/">Go to the overview</a></${Empty}>`;
  }
  if (found.route[2]?.admin && !isAdmin()) {
    return html`<${Heading} title="For administrators" /><${Empty} title="This page is for administrators.">
      <a href="#/">Go to the overview</a></${Empty}>`;
  }
  return html`<${Page} key=${route.path} found=${found} query=${route.query} />`;
}

// A page, once its module is here. A fault in it is shown in its place, and the rest goes on.
function Page({ found, query }) {
  const [Component, setComponent] = useState(null);
  const [missing, setMissing] = useState(null);
  const [fault, again] = useErrorBoundary((error) => console.error(error));
  useEffect(() => {
    let isGone = false;
    found.route[1]().then(
      (module) => !isGone && setComponent(() => module.default),
      () => !isGone && setMissing({ message: "This page cannot be loaded.", advice: "The console may have been updated. Reload the page." }),
    );
    return () => {
      isGone = true;
    };
  }, []);
  useEffect(() => {
    document.querySelector("main h1")?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }, [Component]);
  if (missing) return html`<${ErrorBox} error=${missing} retry=${() => location.reload()} />`;
  if (fault) {
    const error = { message: "This page has failed.", advice: "Reload the page. If it fails again, tell an administrator." };
    return html`<${ErrorBox} error=${error} retry=${again} />`;
  }
  if (!Component) return html`<${Loading} lines=${6} />`;
  return html`<${Component} params=${found.params} query=${query} />`;
}

// A token is here from before: whose is it?
function Recognising() {
  const [error, setError] = useState(null);
  const ask = () => {
    setError(null);
    api.get(path`auth/whoami`).then(describe, setError);
  };
  useEffect(ask, []);
  return html`<main class="alone"><h1>Filestore</h1>
    ${error ? html`<${ErrorBox} error=${error} retry=${ask} />` : html`<${Loading} lines=${3} label="Signing in" />`}</main>`;
}

render(html`<${App} />`, document.getElementById("app"));
