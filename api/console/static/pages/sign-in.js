// Signing in: a token that is pasted, dropped or chosen as a file; it stays in this tab.
import { html, useEffect, useRef, useState } from "../html.js";
import * as api from "../api.js";
import { counted } from "../format.js";
import { Mark, ThemeMenu } from "../layout.js";
import { path } from "../path.js";
import { open, tokenIn, useSession } from "../session.js";
import { ErrorBox } from "../ui/parts.js";

const TOKEN_BYTES_MAX = 64 * 1024;

export function SignIn() {
  const { ended, was } = useSession();
  const [text, setText] = useState("");
  const [error, setError] = useState(null);
  const [isBusy, setIsBusy] = useState(false);
  const field = useRef(null);
  useEffect(() => {
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
      open(token, await api.get(path`auth/whoami`, { token }));
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
  return html`<main class="alone sign-in" onDragEnter=${(event) => event.preventDefault()} onDragOver=${(event) => event.preventDefault()} onDrop=${dropped}>
    <div class="corner"><${ThemeMenu} /></div>
    <p class="brand"><${Mark} />Filestore</p><h1>Sign in</h1>
    ${ended && html`<p class="banner warn" role="status">${ended}${was && html` You were <bdi>${was}</bdi>.`}</p>`}
    <form onSubmit=${(event) => {
      event.preventDefault();
      signIn(text);
    }}><label for="token">Your token</label>
      <input id="token" type="password" autocomplete="off" spellcheck="false" ref=${field} value=${text}
        aria-describedby="token-help" placeholder="Paste it here" onInput=${(event) => setText(event.target.value)} />
      <${ErrorBox} error=${error} />
      <button type="submit" aria-busy=${isBusy} disabled=${isBusy || !text}>Sign in</button>
    </form>
    <label class="drop">Or drop your token file anywhere here, or <span class="link">choose it</span>
      <input type="file" class="unseen" onChange=${(event) => taken(event.target.files[0])} /></label>
    <p id="token-help" class="quiet">The token stays in this tab and is forgotten when you close it. If you have none, ask
      whoever runs this store for one. (They make it on the page Users, or by
      <code>filestore token user NAME -o NAME.token</code>.)</p></main>`;
}
