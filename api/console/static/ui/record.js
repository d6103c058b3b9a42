// What the record of each kind of file says beside what all have, and a form to change it.
import { html } from "../html.js";
import * as api from "../api.js";
import { fileAddress, recordAt } from "../files.js";
import { COMPRESSIONS, VIRT_TYPES } from "../uploads/form.js";
import { FormDialog, show } from "./dialog.js";
import { Copy, Name } from "./parts.js";

const FLAGS = [
  ["include_images", "with its images"],
  ["include_snapshots", "with its snapshots"],
  ["is_read_only", "to be opened, not changed"],
  ["keep_compute_ids", "keeps compute ids"],
  ["reset_mac_addresses", "an import creates new MAC addresses"],
];

export function factsOf(file, kind) {
  if (kind === "project") {
    return [
      ["Project", html`<${Name}>${file.project_name || file.project_id}</${Name}>`],
      ["Project id", html`<${Name}>${file.project_id}</${Name}>`],
      ["Version", file.version_tag && html`<${Name}>${file.version_tag}</${Name}>`],
      ["Tag", file.tag && file.tag !== "-" && html`<${Name}>${file.tag}</${Name}>`],
      ["Message", file.message && html`<${Name}>${file.message}</${Name}>`],
      ["Compression", file.compression],
      ["Options", FLAGS.filter(([flag]) => file[flag]).map(([, text]) => text).join("; ") || "none"],
    ];
  }
  if (kind === "image") {
    return [
      ["Runs in", file.virt_type],
      ["Format", file.format],
      ["Processors", String(file.vcpus)],
      ["Memory", `${file.ram_mb.toLocaleString("en")} MB`],
      ["MD5", file.md5 && html`<code>${file.md5}</code> <${Copy} text=${file.md5} label="Copy the MD5" />`],
      ["Attributes", file.extra_attributes_json && html`<code>${file.extra_attributes_json}</code>`],
    ];
  }
  return [
    ["Type", file.backup_type],
    ["Builds on", file.parent_backup_uuid && html`<a href=${fileAddress({ file_uuid: file.parent_backup_uuid }, "backup")}>${file.parent_backup_uuid}</a>`],
    ["Made on", file.source_node_id && html`<${Name}>${file.source_node_id}</${Name}>`],
    ["Compressed", file.is_compressed ? "yes" : "no"],
    ["Encrypted", file.is_encrypted ? "yes, by the program that made it" : "no"],
  ];
}

const text = (label, name, file, more = {}) =>
  html`<label>${label}<input name=${name} maxlength="255" defaultValue=${file[name]} ...${more} /></label>`;
const choice = (label, name, file, values) =>
  html`<label>${label}<select name=${name}>${values.map((value) => html`<option selected=${value === file[name]}>${value}</option>`)}</select></label>`;
const flag = (label, name, file) =>
  html`<label class="flag"><input type="checkbox" name=${name} defaultChecked=${file[name]} />${label}</label>`;

const FIELDS = {
  project: (file) => html`<div class="pair">${text("Project name", "project_name", file)}${text("Version", "version_tag", file)}
    ${text("Tag", "tag", file)}${text("Message", "message", file)}
    ${choice("Compression", "compression", file, COMPRESSIONS)}</div>${FLAGS.map(([name, label]) => flag(label, name, file))}`,
  image: (file) => html`<div class="pair">${choice("Runs in", "virt_type", file, VIRT_TYPES)}
    ${text("Format", "format", file, { required: true, pattern: "[a-z0-9._\\-]{1,32}" })}
    ${text("Processors", "vcpus", file, { type: "number", min: 1, max: 1024, required: true })}
    ${text("Memory in MB", "ram_mb", file, { type: "number", min: 1, max: 16777216, required: true })}</div>
    <label>Attributes, a JSON object<textarea name="extra_attributes_json" rows="3">${file.extra_attributes_json}</textarea></label>`,
  backup: (file) => html`${text("Made on", "source_node_id", file)}
    ${flag("compressed", "is_compressed", file)}${flag("encrypted", "is_encrypted", file)}`,
};
const BOOLEANS = [...FLAGS.map(([name]) => name), "is_compressed", "is_encrypted"];

// The record as it is then; undefined when nothing was changed.
export function editFields(file, kind) {
  return show((close) => html`<${FormDialog} title="Change its details" close=${close} submit=${(values) => {
    const { content_type, days, ...own } = values;
    for (const name of BOOLEANS) if (name in file) own[name] = own[name] === "on";
    for (const name of ["vcpus", "ram_mb"]) if (name in own) own[name] = Number(own[name]);
    const retention = days ? Number(days) * 24 : null;
    return api.patch(recordAt(kind, file.file_uuid), { content_type, retention_period: retention, ...own });
  }}>${FIELDS[kind](file)}<div class="pair">${text("Media type of downloads", "content_type", file, { required: true })}
    <label>Days to keep the file<input name="days" type="number" min="1" max="36500" placeholder="until it is deleted"
      defaultValue=${file.retention_period ? Math.ceil(file.retention_period / 24) : ""} /></label></div></${FormDialog}>`);
}
