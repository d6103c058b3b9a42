// Jobs: begin a run, cancel one.
import { html } from "../html.js";
import * as api from "../api.js";
import { address, path } from "../path.js";
import { go } from "../router.js";
import { confirm, FormDialog, show } from "./dialog.js";
import { notify } from "./toast.js";

const OF_A_NODE = ["drain", "scrub", "compare", "freeze", "thaw"];
const STOPS_TO_ASK = ["gc", "scrub", "compare"];

// Asks what the job needs and begins it; then its run is shown. Resolves once that is so.
export async function runJob(name, { node = "" } = {}) {
  const nodes = OF_A_NODE.includes(name) ? (await api.list(path`cluster/nodes`, "nodes")).rows : [];
  const begun = await show((close) => html`<${FormDialog} title="Run ${name} now?" close=${close} action="Run now" submit=${(values) => {
    const body = {};
    if (values.node_id) body.node_id = values.node_id;
    if (values.hours) body.grace_s = Math.round(Number(values.hours) * 3600);
    if (values.yes_really) body.yes_really = true;
    return api.post(path`jobs/${name}`, body);
  }}><p>The leading coordinator starts <strong>${name}</strong> at once, and the console shows its progress.</p>
    ${nodes.length > 0 && html`<label>Where<select name="node_id"><option value="">All nodes${name === "drain" ? " that are draining" : ""}</option>
      ${nodes.map((each) => html`<option value=${each.id} selected=${each.id === node}>${each.id} only</option>`)}</select></label>`}
    ${name === "gc" && html`<label>Keep for, in hours<input name="hours" type="number" min="0" max="8784" step="any" placeholder="24" />
      <small>How long content is kept after no file refers to it any more.</small></label>`}
    ${STOPS_TO_ASK.includes(name) && html`<label class="flag"><input type="checkbox" name="yes_really" value="1" />Override the safety limit</label>
      <p class="quiet">Without this, the job stops if it would remove a tenth or more, and says why. That is safer.</p>`}</${FormDialog}>`);
  if (begun) go(address`/jobs/runs/${begun.run_id}`);
  return begun;
}

export function cancelRun(run) {
  return confirm({
    title: "Cancel this run?",
    names: [`${run.job_name}, run ${run.run_id}`],
    text: "What it has done so far is kept. A job with a schedule runs again automatically.",
    action: "Cancel the run",
    run: async () => {
      await api.del(path`jobs/runs/${run.run_id}`);
      notify(`The run of ${run.job_name} is cancelled.`, "good");
    },
  });
}
