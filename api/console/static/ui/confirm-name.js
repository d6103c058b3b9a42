// Asks before what costs content or access: whoever goes on types the name of what goes.
import { html, useState } from "../html.js";
import { FormDialog, show } from "./dialog.js";
import { Name } from "./parts.js";

// `run(values, work)` is awaited in the dialog; what it returns is resolved with. `children(hasFailed)`: more fields,
// drawn anew once the first try was refused.
export function confirmName({ title, name, text, action, run, children }) {
  return show((close) => html`<${Asking} ...${{ title, name, text, action, run, children, close }} />`);
}

function Asking({ title, name, text, action, run, children, close }) {
  const [typed, setTyped] = useState("");
  const [refusal, setRefusal] = useState(null);
  const submit = async (values, work) => {
    if (typed.trim() !== name) throw { message: `The name does not match. Type ${name}.` };
    try {
      return (await run(values, work)) ?? true;
    } catch (error) {
      setRefusal(error);
      throw error;
    }
  };
  return html`<${FormDialog} title=${title} close=${close} action=${action} tone="danger" submit=${submit}>
    <p>${text}</p>
    <label>Type <strong><${Name}>${name}</${Name}></strong> to continue<input value=${typed} autocomplete="off" autocapitalize="off"
      spellcheck="false" required onInput=${(event) => setTyped(event.target.value)} autofocus /></label>
    ${children?.(refusal)}</${FormDialog}>`;
}
