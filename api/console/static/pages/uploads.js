// Uploads: those of this tab, and those that began earlier and wait for their file.
import { html, useEffect, useRef } from "../html.js";
import * as api from "../api.js";
import { fileAddress, KINDS } from "../files.js";
import { counted, duration, size, speed } from "../format.js";
import { fileAt, path } from "../path.js";
import { otherConsoles, servesContent } from "../place.js";
import { session } from "../session.js";
import { joined } from "../folders/paths.js";
import { ChooseFiles, offer } from "../uploads/drop.js";
import { add, busy, clearStored, discard, giveUp, isStored, pause, replace, resume, useUploads } from "../uploads/engine.js";
import { forget, remembered, sentByATab } from "../uploads/memory.js";
import { confirm } from "../ui/dialog.js";
import { Action, Badge, Bar, Card, Empty, ErrorBox, Heading, Loading, Name, Time } from "../ui/parts.js";

const TONES = {
  waiting: "plain", starting: "info", comparing: "info", uploading: "info", retrying: "warn", paused: "warn", "signed out": "warn",
  stored: "good", failed: "bad", "file differs": "bad",
};
const OFFSETS_ASKED_MAX = 10;
const PAUSABLE = ["waiting", "starting", "comparing", "uploading", "retrying"];

const SHOWN_MAX = 200; // rows: a tree has thousands of files, and each of them changes several times

// What is under way or needs its user comes first where not all can be shown, then what waits, then what is stored.
function shownOf(all) {
  if (all.length <= SHOWN_MAX) return all;
  const isIn = [(each) => !["waiting", "stored"].includes(each.state), (each) => each.state === "waiting", (each) => each.state === "stored"];
  return isIn.flatMap((group) => all.filter(group)).slice(0, SHOWN_MAX);
}

// A row is drawn again only if its upload has changed: preact leaves alone what is the same element.
const rowElements = new WeakMap();
function rowOf(each) {
  if (!rowElements.has(each)) rowElements.set(each, html`<${One} key=${each.id} each=${each} />`);
  return rowElements.get(each);
}

export default function Uploads() {
  const here = useUploads();
  const stored = here.filter((each) => each.state === "stored").length;
  const hasStored = stored > 0;
  return html`<${Heading} title="Uploads" sub="Drop files or folders anywhere, on any page.">
      ${servesContent && html`<${ChooseFiles} />`}</${Heading}>
    ${here.length > 0 && html`<${Card} title="In this tab" actions=${hasStored && html`<button type="button" class="small outline" onClick=${clearStored}>Clear finished uploads</button>`}>
      ${here.length > SHOWN_MAX && html`<p class="under sum">${stored.toLocaleString("en")} of ${counted(here.length, "file")} are stored.
        ${SHOWN_MAX} are shown, those that are under way first.</p>`}
      <ul class="uploads">${shownOf(here).map(rowOf)}</ul></${Card}>`}
    <${Earlier} here=${here} />`;
}

function One({ each }) {
  const { id, state, sent, size_bytes: total } = each;
  const left = each.speed > 0 ? `, ${duration((total - sent) / each.speed)} left` : "";
  const words = state === "uploading" ? `${size(sent)} of ${size(total)}, ${speed(each.speed)}${left}`
    : state === "comparing" ? `comparing the file with the ${size(each.arrived)} that are already uploaded, ${size(sent)} done`
    : state === "retrying" ? `${size(sent)} of ${size(total)}; the connection is lost, it goes on by itself, through another node if need be`
    : state === "failed" && sent > 0 ? `stopped at ${size(sent)} of ${size(total)}`
    : state === "stored" ? size(total) : `${size(sent)} of ${size(total)}`;
  const abandon = () => confirm({ title: "Discard this upload?", names: [each.filename], action: "Discard the upload",
    text: "The bytes that were uploaded so far are deleted.", run: () => giveUp(id) });
  const startOver = async (bucket = each.fields.bucket_id) => {
    if (await offer([{ file: each.file, folder: "" }], { bucket, folder: each.fields.path })) await giveUp(id);
  };
  return html`<li><div class="what">${state === "stored"
      ? html`<a href=${fileAddress(each)}><${Name}>${joined(each.fields.path || "", each.filename)}</${Name}></a>`
      : html`<${Name}>${joined(each.fields.path || "", each.filename)}</${Name}>`}
      <${Badge} tone=${TONES[state]}>${state}</${Badge}></div>
    <${Bar} value=${state === "stored" ? 1 : sent} max=${state === "stored" ? 1 : total || 1} label="Progress of ${each.filename}" tone=${state === "stored" ? "good" : "info"} />
    <div class="below"><span class="quiet number">${words}</span><span class="actions">
      ${PAUSABLE.includes(state) && html`<${Action} label="Pause ${each.filename}" run=${() => pause(id)}>Pause</${Action}>`}
      ${["paused", "failed"].includes(state) && html`<${Action} label="Resume ${each.filename}" run=${() => resume(id)}>Resume</${Action}>`}
      ${each.error?.code === "payload_too_large" && html`<${Action} label="Choose another bucket for ${each.filename}" run=${() => startOver("")}>Choose another bucket…</${Action}>`}
      ${state === "file differs" && html`${!isStored(each) && html`<${ChooseAgain} filename=${each.filename} chosen=${(file) => replace(id, file)} />`}
        ${each.error.code !== "file_changed" && html`<${Action} label="Start over with ${each.file.name}" run=${() => startOver()}>${isStored(each) ? "Upload this file…" : "Start over with this file…"}</${Action}>`}`}
      ${isStored(each) ? state !== "stored" && html`<${Action} label="Remove ${each.filename} from this list" run=${() => giveUp(id)}>Remove</${Action}>`
        : html`<${Action} label="Discard ${each.filename}" run=${abandon}>Discard…</${Action}>`}</span></div>
    ${each.error && html`<${ErrorBox} error=${each.error} />`}
    ${each.error?.code === "network" && otherConsoles().length > 0 && html`<p class="quiet">Or resume through another node:
      ${otherConsoles().map((url) => html` <a href=${url} rel="noreferrer">${new URL(url).host}</a>`)}. Sign in there, and choose the file again.</p>`}
  </li>`;
}

// Asks for the file of an upload.
function ChooseAgain({ filename, chosen }) {
  const input = useRef(null);
  const changed = (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (file) chosen(file);
  };
  return html`<input type="file" name="again" hidden ref=${input} onChange=${changed} />
    <button type="button" class="small outline" aria-label="Choose its file… (${filename})" onClick=${() => input.current.click()}>Choose its file…</button>`;
}

// Those that have no file in this tab: the cluster knows them, and this browser may remember that it began them.
function Earlier({ here }) {
  const user = session.get().user.user_id;
  const own = new Set(here.map((each) => each.file_uuid));
  const { data, error, isLoading, refresh } = api.usePolled(async (signal) => {
    const found = [];
    for (const [kind, { path, field }] of Object.entries(KINDS)) {
      for (const status of ["pending", "uploading"]) {
        const { rows } = await api.list(path, field, { query: { status }, signal, rowsMax: 1000 });
        found.push(...rows.filter((row) => row.owner_id === user).map((row) => ({ ...row, kind })));
      }
    }
    await Promise.all(found.filter((row) => row.status === "uploading" && !own.has(row.file_uuid)).slice(0, OFFSETS_ASKED_MAX).map(async (row) => {
      row.arrived = await arrivedOf(row.file_uuid, signal);
    }));
    const sent = await sentByATab(found.map((row) => row.file_uuid));
    return found.map((row) => ({ ...row, isSent: sent.has(row.file_uuid) }));
  }, [here.length, busy(here) === 0], { everyMs: 20_000 });
  const rows = (data || []).filter((row) => !own.has(row.file_uuid));
  const marks = new Map(remembered(user).map((entry) => [entry.file_uuid, entry]));
  useEffect(() => {
    if (!data) return;
    const alive = new Set(data.map((row) => row.file_uuid));
    for (const id of marks.keys()) if (!alive.has(id) && !own.has(id)) forget(id);
  }, [data]);
  const isEmpty = !isLoading && !error && rows.length === 0;
  if (isEmpty && here.length > 0) return null;
  return html`<${Card} title=${isEmpty ? "No uploads" : "Started earlier"}><${ErrorBox} error=${error} retry=${refresh} />
    ${isLoading && !data ? html`<${Loading} lines=${2} />`
      : isEmpty ? html`<${Empty} title="Nothing is being uploaded.">Drop files here, or choose them above. Interrupted uploads are listed here too.</${Empty}>`
      : html`<ul class="uploads">${rows.map((row) => html`<${Waiting} key=${row.file_uuid} row=${row} mark=${marks.get(row.file_uuid)} refresh=${refresh} />`)}</ul>`}
  </${Card}>`;
}

// How many bytes of an upload have arrived; undefined where that is not told.
async function arrivedOf(id, signal) {
  const answer = await api.request("HEAD", path`${fileAt(id)}/content`, { headers: { "Tus-Resumable": "1.0.0" }, signal, raw: true }).catch(() => null);
  const offset = answer?.headers.get("Upload-Offset");
  return offset ? Number(offset) : undefined;
}

function Waiting({ row, mark, refresh }) {
  const total = row.size_bytes || mark?.size_bytes || 0;
  const goOn = (file) => add([{ file, kind: row.kind, file_uuid: row.file_uuid, size_bytes: total,
    fields: { filename: row.filename, bucket_id: row.bucket_id } }]);
  const abandon = () => confirm({ title: "Discard this upload?", names: [row.filename], action: "Discard the upload",
    text: "The bytes that were uploaded so far are deleted.", run: async () => {
      await discard(row.file_uuid);
      refresh();
    } });
  const bytes = row.arrived === undefined ? size(total) : `${size(row.arrived)} of ${size(total)}`;
  // What another client sends may be under way: only this browser knows that it stopped here.
  const isStopped = Boolean(mark) && !row.isSent;
  return html`<li><div class="what"><${Name}>${joined(row.path || "", row.filename)}</${Name}>${isStopped && row.arrived !== undefined
      ? html`<${Badge} tone="warn">stopped at ${bytes}</${Badge}>` : html`<${Badge} state=${row.status} />`}</div>
    <${Bar} value=${row.arrived ?? 0} max=${total || 1} label="Progress of ${row.filename}" tone=${isStopped ? "warn" : "info"} />
    <div class="below"><span class="quiet">${bytes}, started <${Time} at=${row.created_at} />${mark ? "" : ", not with this browser"}.${" "}
      ${row.isSent ? "Another tab of this browser is sending it." : "To resume, choose its file: it is compared with what was uploaded."}</span>
    <span class="actions">${servesContent && total > 0 && !row.isSent && html`<${ChooseAgain} filename=${row.filename} chosen=${goOn} />`}
      <${Action} label="Discard ${row.filename}" run=${abandon}>Discard…</${Action}></span></div></li>`;
}
