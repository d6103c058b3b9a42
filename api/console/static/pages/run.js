// One run of a job, live: how far it is, and a log of what was seen of it.
import { html, useEffect, useRef } from "../html.js";
import * as api from "../api.js";
import * as clock from "../clock.js";
import { countsOf, inWords, progressOf, took } from "../cluster.js";
import { path } from "../path.js";
import { RunBar } from "../ui/cluster-overview.js";
import { cancelRun, runJob } from "../ui/job-actions.js";
import { Action, Badge, Card, Copy, Empty, ErrorBox, Facts, Heading, Loading, Name, Time } from "../ui/parts.js";

const LINES_MAX = 2000;
const LOGS_MAX = 20;
const logs = new Map(); // by run: { lines, last }; they outlive the page, not the tab

function logOf(runId) {
  if (!logs.has(runId)) {
    if (logs.size >= LOGS_MAX) logs.delete(logs.keys().next().value);
    logs.set(runId, { lines: [], last: "" });
  }
  return logs.get(runId);
}

const clockText = (at) => new Date(at).toLocaleTimeString("en-GB");

// What changed since the last look, as a line.
function note(log, run) {
  const write = (at, text) => log.lines.push([clockText(at), text]) > LINES_MAX && log.lines.splice(1, 1);
  if (log.lines.length === 0) write(run.started_at, `${run.job_name} begins, asked for by ${run.invoked_by}.`);
  if (run.node_id !== log.node) write(log.node ? clock.now() : run.started_at, `The coordinator ${run.node_id} runs it.`);
  log.node = run.node_id;
  const text = inWords(run);
  const now = run.completed_at || clock.now();
  if (text && text !== log.last) write(now, text);
  log.last = text;
  if (run.status !== "running" && !log.hasEnded) {
    log.hasEnded = true;
    write(now, run.status === "completed" ? `Completed after ${took(run)}.` : `Failed after ${took(run)}: ${run.result?.error || "no reason is recorded"}.`);
  }
  return log.lines;
}

export default function Run({ params }) {
  const seen = useRef("running");
  const { data: run, error, isLoading, refresh } = api.usePolled(async (signal) => {
    const found = await api.getOne(path`jobs/runs/${params.uuid}`, "run_id", params.uuid, { signal });
    seen.current = found.status;
    // The time is in it, so that the pause between two looks stays short while it runs.
    const at = found.status === "running" ? Math.floor(clock.now() / 4000) : 0;
    return { ...found, at, lines: [...note(logOf(params.uuid), found)] };
  }, [params.uuid], { everyMs: 1000, isLive: seen.current === "running" });
  if (!run) {
    return html`<${Heading} title="Run of a job" /><${ErrorBox} error=${error} retry=${refresh} />
      ${isLoading && html`<${Loading} lines=${8} />`}${error?.code === "not_found" && html`<${Empty} title="This run does not exist any more.">
      The newest hundred runs of each job are kept. <a href="#/jobs">See the jobs</a></${Empty}>`}`;
  }
  const { left, wait } = progressOf(run);
  return html`<${Heading} title="Run of ${run.job_name}" sub=${html`<span role="status"><${Badge} state=${run.status} /> ${run.status === "running" ? "for" : "after"} ${took(run)}${wait && `, about ${wait} left`}</span>`}>
      <a href="#/jobs" role="button" class="small outline">All jobs</a>
      ${run.status === "running" ? html`<${Action} tone="danger" run=${async () => (await cancelRun(run)) && refresh()}>Cancel…</${Action}>`
        : html`<${Action} run=${() => runJob(run.job_name)}>Run again…</${Action}>`}</${Heading}>
    <${ErrorBox} error=${error} retry=${refresh} />
    ${run.result?.error && html`<p class="banner bad" role="alert">${run.result.error}</p>`}
    <div class="cards"><${Card} title="Progress"><${RunBar} run=${run} />
      ${countsOf(run).length === 0 ? html`<p class="quiet">${run.status === "running" ? "There are no results yet." : "It had nothing to do."}</p>`
        : html`<${Facts} rows=${countsOf(run)} />`}
      ${run.status === "running" && left === undefined && html`<p class="quiet">This job cannot tell how much is left.</p>`}</${Card}>
    <${Card} title="Run"><${Facts} rows=${[
      ["Began", html`<${Time} at=${run.started_at} how="moment" />`],
      ["Ended", html`<${Time} at=${run.completed_at} how="moment" none="it runs" />`],
      ["Started by", html`<${Name}>${run.invoked_by}</${Name}>`],
      ["Runs on", run.node_id],
      ["Run id", html`<code>${run.run_id}</code>`],
    ]} /></${Card}></div>
    <${Log} lines=${run.lines} isLive=${run.status === "running"} />`;
}

function Log({ lines, isLive }) {
  const box = useRef(null);
  const follows = useRef(true);
  useEffect(() => {
    if (follows.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines.length]);
  const scrolled = () => {
    const { scrollTop, clientHeight, scrollHeight } = box.current;
    follows.current = scrollTop + clientHeight > scrollHeight - 20;
  };
  const text = lines.map((line) => line.join("  ")).join("\n");
  return html`<${Card} title="Log" actions=${html`${isLive && html`<${Badge} tone="info">live</${Badge}>`}<${Copy} text=${text} label="Copy the log" />`}>
    <div class="run-log" role="log" aria-label="Log of the run" tabindex="0" ref=${box} onScroll=${scrolled}>${lines.map(
      ([at, line], index) => html`<p key=${index}><span class="quiet">${at}</span> ${line}</p>`)}</div>
    <p class="quiet">What this page saw of the run while it was open in this tab. The log of the process that runs it has the details of every failure.</p></${Card}>`;
}
