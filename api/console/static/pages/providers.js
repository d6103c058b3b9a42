// Identity providers with which people sign in: how they are set, and a test of each, step by step.
import { html, useState } from "../html.js";
import * as api from "../api.js";
import { duration } from "../format.js";
import { path } from "../path.js";
import { PlainTable } from "../ui/plain-table.js";
import { Action, Badge, Card, Copy, Empty, ErrorBox, Facts, Heading, Loading, Name } from "../ui/parts.js";

const EVERYBODY = "*";
const TONES = { ok: "good", failed: "bad", note: "info" };
const STEPS = [
  { key: "outcome", title: "Outcome", width: "6rem", render: (step) => html`<${Badge} state=${step.outcome} tone=${TONES[step.outcome]} />` },
  { key: "step", title: "Step", width: "11rem", small: "7rem", wrap: true, render: (step) => html`<${Name}>${step.step}</${Name}>` },
  { key: "details", title: "What was found", wrap: true },
];

async function readAll(signal) {
  const { providers } = await api.get(path`auth/providers`, { signal });
  return Promise.all(providers.map(({ name }) => api.getOne(path`auth/providers/${name}`, "name", name, { signal })));
}

const named = (names) => names.map((name) => html`<${Badge} tone="plain">${name}</${Badge}> `);

function Provider({ provider }) {
  const [steps, setSteps] = useState(null);
  const test = async () => setSteps((await api.post(path`auth/providers/${provider.name}/test`)).steps);
  return html`<${Card} title=${html`<${Name}>${provider.label}</${Name}>`} actions=${html`<${Action} label="Test ${provider.name}" run=${test}>Test</${Action}>`}>
    <${Facts} rows=${[
      ["Name", html`<code>${provider.name}</code>`],
      ["Issuer", provider.issuer],
      ["Client", html`<code>${provider.client_id}</code>${provider.has_secret ? "" : " without a secret"}`],
      ["Client of the command", provider.command_client_id && html`<code>${provider.command_client_id}</code>`],
      ["May sign in", provider.allowed_groups.includes(EVERYBODY) ? "everybody whom the provider knows" : named(provider.allowed_groups)],
      ["Administrators", provider.admin_groups.length > 0 && named(provider.admin_groups)],
      ["Groups that are taken", provider.taken_groups.length > 0 ? named(provider.taken_groups) : "all"],
      ["Tokens are valid for", duration(provider.token_seconds)],
      ["Redirect URIs", html`<span>${provider.redirect_uris.map((uri) => html`<div><${Copy} text=${uri} label="Copy ${uri}" shown /></div>`)}</span>`],
    ]} />
    ${steps && html`<div role="status"><${PlainTable} label="Test of ${provider.name}" rows=${steps} keyOf=${(step) => step.step} columns=${STEPS} /></div>`}</${Card}>`;
}

export default function Providers() {
  const { data, error, isLoading, refresh } = api.usePolled(readAll, [], { everyMs: 30_000 });
  return html`<${Heading} title="Sign-in" sub="Identity providers, with which people sign in to the console and with filestore login." />
    <${ErrorBox} error=${error} retry=${refresh} />
    ${isLoading && html`<${Loading} lines=${8} />`}
    ${data?.map((provider) => html`<${Provider} key=${provider.name} provider=${provider} />`)}
    ${data?.length === 0 && html`<${Empty} title="No providers yet.">The command <code>filestore sso set</code> adds and changes them, so that no secret passes through a browser.
      <a href="#/help/sign-in">How it works</a></${Empty}>`}`;
}
