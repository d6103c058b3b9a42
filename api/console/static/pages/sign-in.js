// Signing in: a token that is pasted, dropped or chosen as a file; it stays in this tab, or on this browser.
import { html, useEffect, useRef, useState } from "../html.js";
import * as api from "../api.js";
import { counted } from "../format.js";
import { Mark, ThemeMenu } from "../layout.js";
import { path } from "../path.js";
import { begin, listProviders } from "../providers.js";
import { open, tokenIn, useSession } from "../session.js";
import { ErrorBox } from "../ui/parts.js";
import { save } from "../ui/save.js";

const TOKEN_BYTES_MAX = 64 * 1024;

// A browser that trusts the root trusts every member. Its user compares the fingerprint with what the operator says.
async function saveRoot() {
  const { ca_cert: root } = await api.get(path`cluster/ca`, { token: "" });
  save(root, "filestore-root.crt", "application/x-x509-ca-cert");
}

export function SignIn() {
  const { ended, was } = useSession();
  const [text, setText] = useState("");
  const [error, setError] = useState(null);
  const [isBusy, setIsBusy] = useState(false);
  const [isKept, setIsKept] = useState(false);
  const [providers, setProviders] = useState([]);
  const field = useRef(null);
  useEffect(() => {
    listProviders().then(setProviders);
    document.title = "Sign in · Filestore";
    field.current?.focus();
  }, []);
  async function signIn(given) {
    const token = tokenIn(given);
    if (!token) {
      setError({ message: "This is not a token.", advice: "A token is one long line of three parts that are separated by dots." });
      return;
    }
    setIsBusy(true);
    setError(null);
    try {
      open(token, await api.get(path`auth/whoami`, { token }), isKept);
    } catch (problem) {
      if (problem.isRefused) {
        problem.message = "This token was rejected. It has expired, was revoked, or is for another cluster.";
        problem.advice = "Ask an administrator for a new one.";
      }
      if (problem.status === 429) {
        problem.advice = `Too many attempts from your address have failed. Wait ${counted(Math.max(problem.waitS, 1), "second")} before you try another.`;
      }
      setError(problem);
      setIsBusy(false);
    }
  }
  async function leaveFor(provider) {
    setIsBusy(true);
    setError(null);
    try {
      await begin(provider, isKept);
    } catch (problem) {
      setError(problem);
      setIsBusy(false);
    }
  }
  async function taken(file) {
    if (!file) return;
    if (file.size > TOKEN_BYTES_MAX) setError({ message: "This file is too large to be a token file." });
    else await signIn(await file.text());
  }
  function dropped(event) {
    event.preventDefault();
    const data = event.dataTransfer;
    if (data.files.length > 0) taken(data.files[0]);
    else signIn(data.getData("text/plain"));
  }
  const latest = useRef(dropped);
  latest.current = dropped;
  useEffect(() => {
    // Beside the form, too: else the browser would open the file.
    const listeners = { dragenter: (event) => event.preventDefault(), dragover: (event) => event.preventDefault(), drop: (event) => latest.current(event) };
    for (const [name, listener] of Object.entries(listeners)) addEventListener(name, listener);
    return () => {
      for (const [name, listener] of Object.entries(listeners)) removeEventListener(name, listener);
    };
  }, []);
  return html`<main class="alone sign-in">
    <div class="corner"><${ThemeMenu} /></div>
    <p class="brand"><${Mark} />Filestore</p><h1>Sign in</h1>
    ${ended && html`<p class="banner warn" role="status">${ended}${was && html` You were <bdi>${was}</bdi>.`}</p>`}
    ${providers.length > 0 && html`<div class="providers">${providers.map(({ name, label }) => html`<button type="button" key=${name}
      disabled=${isBusy} onClick=${() => leaveFor(name)}>Sign in with <bdi>${label}</bdi></button>`)}</div><p class="quiet">Or sign in with a token:</p>`}
    <form onSubmit=${(event) => {
      event.preventDefault();
      signIn(text);
    }}><label for="token">Your token</label>
      <input id="token" type="password" autocomplete="off" spellcheck="false" ref=${field} value=${text}
        aria-describedby="token-help" placeholder="Paste it here" onInput=${(event) => setText(event.target.value)} />
      <label class="flag"><input type="checkbox" name="is_kept" checked=${isKept} aria-describedby="kept-help"
        onChange=${(event) => setIsKept(event.target.checked)} />Stay signed in on this browser</label>
      ${isKept && html`<p id="kept-help" class="quiet">Every tab with this address is signed in, also after the browser was closed,
        until you sign out or the token expires. Do not use this on a computer that you share.</p>`}
      <${ErrorBox} error=${error} />
      <button type="submit" aria-busy=${isBusy} disabled=${isBusy || !text}>Sign in</button>
    </form>
    <label class="drop">Or drop your token file anywhere here, or <span class="link">choose it</span>
      <input type="file" class="unseen" onChange=${(event) => taken(event.target.files[0])} /></label>
    <p id="token-help" class="quiet">${!isKept && "The token stays in this tab and is forgotten when you close it. "}If you have no token, ask
      an administrator for one. (They create it on the page Users, or with${" "}
      <code>filestore token user NAME -o NAME.token</code>.)</p>
    <p class="quiet">Did your browser warn you about the certificate? <button type="button" class="plain link" onClick=${() => saveRoot().catch(setError)}>Download
      the root certificate</button> and <a href="#/help/browsers">install it</a>: then the browser trusts every node, also when another one takes over.</p></main>`;
}
