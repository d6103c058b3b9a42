// Background jobs: what there is, when each runs, and the runs of late.
import { html } from "../html.js";
import * as api from "../api.js";
import { now } from "../clock.js";
import { inWords, took } from "../cluster.js";
import { duration } from "../format.js";
import { address, path } from "../path.js";
import { runJob } from "../ui/job-actions.js";
import { PlainTable } from "../ui/plain-table.js";
import { DataTable } from "../ui/table.js";
import { Action, Badge, Card, Empty, ErrorBox, Heading, Loading, Name, Time, When } from "../ui/parts.js";

const STATUSES = [["running", "running"], ["completed", "completed"], ["failed", "failed"]];
const everyOf = (job) => (job.schedule_s ? `every ${duration(job.schedule_s)}` : "when asked");

export default function Jobs() {
  const jobs = api.usePolled((signal) => api.get(path`jobs`, { query: { limit: 1000 }, signal }), [], { everyMs: 3000 });
  const rows = jobs.data?.jobs || [];
  // The runs are many: they are asked for again only when the newest of some job has changed.
  const newest = JSON.stringify(rows.map((job) => [job.last_run?.run_id, job.last_run?.status]));
  const columns = [
    { key: "job_name", title: "Job", width: "7rem", small: "auto", wrap: true, render: (job) => html`<strong>${job.job_name}</strong><span class="only-narrow quiet">${job.description}</span>` },
    { key: "description", title: "What it does", wrap: true, hide: "narrow", render: (job) => html`<span class="quiet">${job.description}</span>` },
    { key: "schedule_s", title: "Runs", width: "8rem", hide: "medium", render: (job) => html`<span title=${job.schedule_s ? "If there is something to do" : "It has no schedule"}>${everyOf(job)}</span>` },
    { key: "last_run", title: "Newest run", width: "13rem", small: "6.2rem", render: (job) => job.last_run ? html`<a href=${address`/jobs/runs/${job.last_run.run_id}`} aria-label="Newest run of ${job.job_name}: ${job.last_run.status}"><${Badge} state=${job.last_run.status} /></a>${" "}
      <span class="ago"><${Time} at=${job.last_run.started_at} /></span>`
      : html`<span class="quiet">never</span>` },
    { key: "run", width: "6rem", small: "5.4rem", align: "end", render: (job) => job.last_run?.status === "running" ? html`<a href=${address`/jobs/runs/${job.last_run.run_id}`} aria-label="Watch the run of ${job.job_name}">Watch</a>`
      : html`<${Action} label="Run… ${job.job_name}" run=${() => runJob(job.job_name)}>Run…</${Action}>` },
  ];
  return html`<${Heading} title="Jobs" sub="What the cluster does by itself, and when you say so." />
    <${Card} title="All jobs"><${ErrorBox} error=${jobs.error} retry=${jobs.refresh} />
      ${jobs.isLoading && html`<${Loading} lines=${9} />`}
      ${rows.length > 0 && html`<${PlainTable} label="All jobs" rows=${rows} keyOf=${(job) => job.job_name} columns=${columns} />`}</${Card}>
    ${rows.length > 0 && html`<${Runs} newest=${newest} jobs=${rows.map((job) => job.job_name)} />`}`;
}

function Runs({ newest, jobs }) {
  const runs = api.usePolled((signal) => api.list(path`jobs/runs`, "runs", { signal }), [newest], { isLive: false });
  const rows = runs.data?.rows || runs.was?.rows || [];
  const columns = [
    { key: "job_name", title: "Job", width: "7rem", small: "6rem", render: (run) => html`<a href=${address`/jobs/runs/${run.run_id}`}>${run.job_name}</a>` },
    { key: "status", title: "Status", width: "7.5rem", small: "6.5rem", render: (run) => html`<${Badge} state=${run.status} />` },
    { key: "started_at", title: "Began", width: "11rem", small: "auto", render: (run) => html`<${When} at=${run.started_at} />` },
    { key: "took", title: "Took", width: "7rem", hide: "medium", value: (run) => new Date(run.completed_at || now()) - new Date(run.started_at), render: (run) => took(run) },
    { key: "invoked_by", title: "Asked by", width: "8rem", hide: "narrow", render: (run) => html`<${Name}>${run.invoked_by}</${Name}>` },
    { key: "result", title: "Came to", hide: "narrow", value: inWords, render: (run) => html`<span class="quiet" title=${run.result?.error || inWords(run)}>${run.result?.error || inWords(run) || "nothing to do"}</span>` },
  ];
  return html`<${Card} title="Runs"><${DataTable} label="Runs" noun="run" rows=${rows} keyOf=${(run) => run.run_id} columns=${columns}
    search=${{ label: "Search by job or who asked", text: (run) => `${run.job_name} ${run.invoked_by} ${run.run_id} ${run.result?.error || ""}` }}
    filters=${[
      { key: "job", title: "Job", options: jobs.map((name) => [name, name]), accept: (run, value) => run.job_name === value },
      { key: "status", title: "Status", options: STATUSES, accept: (run, value) => run.status === value },
    ]} sort=${{ key: "started_at", down: true }} isLoading=${runs.isLoading} error=${runs.error} refresh=${runs.refresh}
    empty=${html`<${Empty} title="No runs yet.">Jobs run by themselves when there is something to do, or when you say so.</${Empty}>`} /></${Card}>`;
}
