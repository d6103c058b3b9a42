// A link with which somebody gets the first token: nothing is asked for before the button, so that what only looks at links uses none up.
import { html, useEffect, useState } from "../html.js";
import * as api from "../api.js";
import { moment } from "../format.js";
import { Mark, ThemeMenu } from "../layout.js";
import { path } from "../path.js";
import { open, session } from "../session.js";
import { Copy, ErrorBox, Name } from "../ui/parts.js";
import { save } from "../ui/save.js";

const BROWSERS = [["Firefox", "Firefox"], ["Edg", "Edge"], ["Chrome", "Chrome"], ["Safari", "Safari"]];
const SYSTEMS = [["Android", "Android"], ["iPhone", "iPhone"], ["iPad", "iPad"], ["Windows", "Windows"], ["Mac OS", "macOS"], ["Linux", "Linux"]];
const FAILED = {
  404: ["There is no such invitation.", "Check that you have the whole link. If you were sent a newer one, use that."],
  410: ["This invitation was used, or has ended.", "Ask the person who sent it for another one. If it was not you who used it, say so: somebody else has your token."],
};

const named = (pairs) => (pairs.find(([word]) => navigator.userAgent.includes(word)) || ["", ""])[1];
const label = () => ["console", [named(BROWSERS), named(SYSTEMS)].filter(Boolean).join(" on ")].filter(Boolean).join(", ");

export default function Invitation({ params }) {
  const [minted, setMinted] = useState(null);
  const [error, setError] = useState(null);
  const [isBusy, setIsBusy] = useState(false);
  const [isKept, setIsKept] = useState(false);
  const [before] = useState(() => session.get().user?.user_id || (session.get().token && "another user"));
  useEffect(() => {
    document.title = "Invitation · Filestore";
  }, []);
  async function redeem(event) {
    event.preventDefault();
    if (isBusy) return;
    setIsBusy(true);
    setError(null);
    try {
      const made = await api.post(path`auth/invitations/redeem`, { token: params.token, label: label() }, { token: "" });
      setMinted(made);
      history.replaceState(null, "", "#/"); // the history keeps no secret
      open(made.token, await api.get(path`auth/whoami`, { token: made.token }), isKept);
    } catch (problem) {
      [problem.message, problem.advice] = FAILED[problem.status] || [problem.message, problem.advice];
      setError(problem);
    }
    setIsBusy(false);
  }
  const saveToken = () => save(`${minted.token}\n`, `${minted.user_id.replaceAll(/[^\w.@-]/g, "_")}.token`);
  return html`<main class="alone sign-in"><div class="corner"><${ThemeMenu} /></div><p class="brand"><${Mark} />Filestore</p>
    ${minted ? html`<h1 tabindex="-1">Welcome, <${Name}>${minted.user_id}</${Name}></h1>
      <p>You are signed in. Save your token as a file: with it, you sign in on another computer and with the command. Do not give it to anyone.</p>
      <p>It is valid until <strong>${moment(minted.expires_at)}</strong>. Until then you can renew it.</p>
      <p class="row"><button type="button" onClick=${saveToken}>Save the token</button> <${Copy} text=${minted.token} label="Copy the token" class="outline" /></p>
      <p class="quiet">For the command: <code>filestore login ${location.origin} --token-file FILE</code></p>
      <${ErrorBox} error=${error} />
      <p><button type="button" onClick=${() => dispatchEvent(new Event("hashchange"))}>Continue to your files</button></p>`
    : html`<h1 tabindex="-1">You are invited</h1>
      <p>This link gives you access to Filestore, once. Open it on a computer that is yours.</p>
      ${before && html`<p class="banner warn" role="status">You are signed in as <bdi>${before}</bdi> here. The invitation takes the place of that.</p>`}
      <form onSubmit=${redeem}><label class="flag"><input type="checkbox" name="is_kept" checked=${isKept} onChange=${(event) => setIsKept(event.target.checked)} />Stay signed in on this browser</label>
        <${ErrorBox} error=${error} />
        <button type="submit" aria-busy=${isBusy} disabled=${isBusy}>Accept the invitation</button></form>`}</main>`;
}
