// What is asked before an upload: the kind of each file, what the kind needs, the bucket, and how long it is kept.
import { html, useEffect, useState } from "../html.js";
import * as api from "../api.js";
import { counted, size } from "../format.js";
import { path } from "../path.js";
import { DEFAULT_BUCKET, useRights } from "../rights.js";
import { go } from "../router.js";
import { ErrorBox, Loading, Name } from "../ui/parts.js";
import { Located } from "../folders/listing.js";
import { joined, wrongIn } from "../folders/paths.js";
import { notify } from "../ui/toast.js";
import { add } from "./engine.js";
import { fieldsOf, guess } from "./guess.js";
import { withoutClashes } from "./present.js";

const DETAILED_MAX = 3; // with a form for each; more are a line each
const LINES_MAX = 200; // of more, the content decides, or what is chosen for all
export const VIRT_TYPES = ["qemu", "docker", "dynamips", "iou", "vmware", "virtualbox", "vpcs"];
export const COMPRESSIONS = ["none", "deflate", "bz2", "xz", "zstd"];
const NAMES = { project: "Project", image: "Image", backup: "Backup" };

// files: [{ file, folder }]; `bucket`, `folder`: where they go unless something else is chosen.
export function UploadForm({ files, close, bucket = "", folder = "" }) {
  const [rows, setRows] = useState(null);
  const [refusal, setRefusal] = useState(null);
  const [isBusy, setIsBusy] = useState(false);
  const [all, setBuckets] = useState([]);
  const { mayUploadTo, mayOnFile } = useRights();
  const buckets = all.filter(mayUploadTo);
  const [error, setError] = useState(null);
  useEffect(() => {
    let isGone = false;
    Promise.all(files.map(rowOf)).then((found) => !isGone && setRows(found), () => !isGone && setError({
      message: "A file cannot be read.", advice: "It may have been moved or changed. Choose it again." }));
    api.list(path`buckets`, "buckets").then((all) => !isGone && setBuckets(all.rows), () => {});
    return () => {
      isGone = true;
    };
  }, []);
  const setAll = (kind) => setRows(rows.map((row) => ({ ...row, kind: kind || row.guessed.kind, own: {} })));
  const set = (index, changes) => setRows(rows.map((row, at) => (at === index ? { ...row, ...changes } : row)));
  async function begin(event) {
    event.preventDefault();
    const form = new FormData(event.target);
    const base = joined(form.get("folder"));
    const common = { bucket_id: form.get("bucket") };
    if (form.get("retention")) common.retention_period = Number(form.get("retention")) * 24;
    const wanted = rows.map((row) => ({ ...fieldsOf(row.kind, row.name, row.guessed), ...row.own, ...common, path: joined(base, row.folder), row }));
    const wrong = wrongIn(base) || wanted.map((each) => wrongIn(each.path)).find(Boolean);
    if (wrong) return setRefusal({ message: wrong });
    setIsBusy(true);
    const chosen = await withoutClashes(wanted, base, mayOnFile).catch(setRefusal);
    setIsBusy(false);
    if (!chosen) return undefined;
    if (chosen.length > 0) add(chosen.map(({ row, replaces, path: place, ...fields }) => ({
      file: row.file, kind: row.kind, fields: place ? { ...fields, path: place } : fields, replaces })));
    else notify("Nothing is uploaded.", "info");
    close(true);
    return chosen.length > 0 && go("/uploads");
  }
  if (error) return html`<${ErrorBox} error=${error} />`;
  if (!rows) return html`<${Loading} lines=${4} label="Examining the files" />`;
  const total = rows.reduce((sum, row) => sum + row.file.size, 0);
  return html`<form onSubmit=${begin}>
    ${rows.length <= DETAILED_MAX
      ? rows.map((row, index) => html`<${OneFile} key=${index} row=${row} set=${(changes) => set(index, changes)} />`)
      : html`<label>Kind of all<select onChange=${(event) => setAll(event.target.value)}><option value="">As each looks: ${summary(rows)}</option>
          ${Object.entries(NAMES).map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select></label>
        <ul class="chosen">${rows.slice(0, LINES_MAX).map((row, index) => html`<${OneLine} key=${index} row=${row} set=${(changes) => set(index, changes)} />`)}</ul>`}
    ${rows.length > LINES_MAX && html`<p>And ${counted(rows.length - LINES_MAX, "more file")}: ${summary(rows.slice(LINES_MAX))}.</p>`}
    <div class="pair"><label>Bucket<select name="bucket">${(buckets.length > 0 ? buckets : [{ bucket_id: bucket || DEFAULT_BUCKET, name: bucket || "default" }]).map(
      (each) => html`<option value=${each.bucket_id} selected=${each.bucket_id === (bucket || DEFAULT_BUCKET)}>${each.name}</option>`)}</select></label>
      <label>Folder<input name="folder" maxlength="1024" placeholder="the top of the bucket" defaultValue=${folder} /></label>
      <label>Days to keep the file<input name="retention" type="number" min="1" max="36500" placeholder="until it is deleted" /></label></div>
    <${ErrorBox} error=${refusal} />
    <footer class="kept"><span class="quiet grow">${counted(rows.length, "file")}, ${size(total)}</span>
      <button type="button" class="outline" onClick=${() => close()}>Cancel</button>
      <button type="submit" aria-busy=${isBusy} disabled=${isBusy}>Upload</button></footer></form>`;
}

async function rowOf({ file, folder }) {
  const guessed = await guess(file);
  return { file, folder, name: file.name, guessed, kind: guessed.kind, own: {} };
}

function summary(rows) {
  const kinds = rows.reduce((sums, { kind }) => ({ ...sums, [kind]: (sums[kind] || 0) + 1 }), {});
  return Object.entries(kinds).map(([kind, count]) => counted(count, kind)).join(", ");
}

// One of many: its name and its kind; more can be changed once it is stored.
function OneLine({ row, set }) {
  return html`<li><${Located} name=${row.name} folder=${row.folder} /><span class="quiet number">${size(row.file.size)}</span>
    <select aria-label="Kind of ${row.name}" value=${row.kind} onChange=${(event) => set({ kind: event.target.value, own: {} })}>
      ${Object.entries(NAMES).map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select></li>`;
}

function OneFile({ row, set }) {
  const { kind, own, guessed, file } = row;
  const change = (field, value) => set({ own: { ...own, [field]: value } });
  return html`<fieldset class="one-file"><legend><${Name}>${row.name}</${Name}> <span class="quiet">${size(file.size)}</span></legend>
    <div class="pair"><label>Kind<select value=${kind} onChange=${(event) => set({ kind: event.target.value, own: {} })}>
        ${Object.entries(NAMES).map(([value, text]) => html`<option value=${value}>${text}${value === guessed.kind ? " (as it looks)" : ""}</option>`)}
      </select></label>
      ${kind === "project" && html`<label>Project id<input required maxlength="255" value=${own.project_id ?? fieldsOf(kind, row.name, guessed).project_id}
        onInput=${(event) => change("project_id", event.target.value)} /></label>`}
      ${kind === "image" && html`<label>Runs in<select value=${own.virt_type || "qemu"} onChange=${(event) => change("virt_type", event.target.value)}>
        ${VIRT_TYPES.map((type) => html`<option>${type}</option>`)}</select></label>`}
      ${kind === "backup" && html`<label>Made on<input maxlength="255" placeholder="which machine, if you like"
        onInput=${(event) => change("source_node_id", event.target.value)} /></label>`}</div>
    <details><summary>More</summary><div class="pair">
      <label>Name<input required maxlength="255" value=${row.name} onInput=${(event) => set({ name: event.target.value })} /></label>
      ${kind === "project" && html`<label>Project name<input maxlength="255" onInput=${(event) => change("project_name", event.target.value)} /></label>
        <label>Version<input maxlength="255" onInput=${(event) => change("version_tag", event.target.value)} /></label>
        <label>Compression<select onChange=${(event) => change("compression", event.target.value)}>${COMPRESSIONS.map((name) => html`<option>${name}</option>`)}</select></label>`}
      ${kind === "image" && html`<label>Format<input required pattern="[a-z0-9._\\-]{1,32}" value=${own.format ?? guessed.format}
          onInput=${(event) => change("format", event.target.value)} /></label>
        <label>Processors<input type="number" min="1" max="1024" value="1" onInput=${(event) => change("vcpus", Number(event.target.value))} /></label>
        <label>Memory in MB<input type="number" min="1" max="16777216" value="512" onInput=${(event) => change("ram_mb", Number(event.target.value))} /></label>`}
    </div></details></fieldset>`;
}
