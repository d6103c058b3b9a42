// Where a provider sends the browser back to: finishes the sign-in, and goes on where it was begun.
import { html, useEffect, useState } from "../html.js";
import { address } from "../path.js";
import { finish } from "../providers.js";
import { ErrorBox, Loading } from "../ui/parts.js";

export default function SignedIn({ params, query }) {
  const [error, setError] = useState(null);
  useEffect(() => {
    document.title = "Sign in · Filestore";
    history.replaceState(null, "", address`/signed-in/${params.name}`); // no code in the address, nor in the history
    finish(params.name, query).then((back) => {
      history.replaceState(null, "", back || "#/");
      dispatchEvent(new HashChangeEvent("hashchange"));
    }, setError);
  }, []);
  return html`<main class="alone"><h1>Signing in</h1>
    ${error ? html`<${ErrorBox} error=${error} /><p><a href="#/">Back to the sign-in page</a></p>`
      : html`<${Loading} lines=${3} label="Signing in" />`}</main>`;
}
