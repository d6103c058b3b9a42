// Names that are already in the folders that files get into: they are found, and one dialog asks what happens to each.
import { html, useState } from "../html.js";
import * as api from "../api.js";
import { counted } from "../format.js";
import { Located } from "../folders/listing.js";
import { joined, parentOf } from "../folders/paths.js";
import { bucketAt, path } from "../path.js";
import { isMine, ownersOf } from "../rights.js";
import { Dialog, show } from "../ui/dialog.js";

const AT_ONCE = 6;
const ONE_BY_ONE_MAX = 20; // names that are looked for on their own; for more, the folder is listed
const LISTED_MAX = 100_000;
const LINES_MAX = 200;
const CHOICES = { keep: "Keep both", replace: "Replace", skip: "Skip" };

// What is to be uploaded or moved, [{ bucket_id, path, filename }, ...], without what is skipped, and `replaces`: ids of the
// files that are deleted once the other one is there. `mayOnFile`: of useRights. `moved`: ids of the files that are moved.
// Undefined if the user decides to do nothing at all.
export async function withoutClashes(wanted, base, mayOnFile, moved) {
  const clashes = wanted.length > 0 ? await clashesOf(wanted, base, mayOnFile, moved || new Set()) : [];
  if (clashes.length === 0) return wanted;
  const how = moved ? "Replace moves the file first and then deletes the one that is there."
    : "Replace stores the new file first and then deletes the old one.";
  const choices = await show((close) => html`<${Clashes} clashes=${clashes} how=${how} close=${close} />`);
  if (!choices) return undefined;
  const chosen = new Map(clashes.map((clash, at) => [clash.wanted, { ...clash, choice: choices[at] }]));
  return wanted.flatMap((each) => {
    const { choice, present } = chosen.get(each) || {};
    if (choice === "skip") return [];
    return [choice === "replace" ? { ...each, replaces: present.map((file) => file.file_uuid) } : each];
  });
}

// [{ wanted, present: [files], mayReplace, others: [those of other users] }] of the names that are there.
async function clashesOf(wanted, base, mayOnFile, moved) {
  const [{ bucket_id: bucketId }] = wanted;
  const byFolder = grouped(wanted);
  const found = [];
  try {
    const folders = await existing(bucketId, [...byFolder.keys()], base);
    await atOnce(folders, async (folder) => {
      const ours = byFolder.get(folder);
      const files = await presentIn(bucketId, folder, new Set(ours.map((each) => each.filename)));
      for (const each of ours) {
        const present = (files.get(each.filename) || []).filter((file) => !moved.has(file.file_uuid));
        if (present.length > 0) found.push({ wanted: each, present });
      }
    });
  } catch (error) {
    // Members of a version without folders, or nothing that may be read: then the upload says what is wrong, if anything is.
    if ([403, 404, 503].includes(error.status)) return [];
    throw error;
  }
  const mayDrop = (file) => mayOnFile({ ...file, bucket_id: bucketId }, "admin");
  for (const clash of found) {
    clash.mayReplace = clash.present.every(mayDrop);
    clash.others = clash.present.filter((file) => !isMine(file));
  }
  const order = new Map(wanted.map((each, at) => [each, at]));
  return found.sort((a, b) => order.get(a.wanted) - order.get(b.wanted));
}

function grouped(wanted) {
  const groups = new Map();
  for (const each of wanted) {
    if (!groups.has(each.path)) groups.set(each.path, []);
    groups.get(each.path).push(each);
  }
  return groups;
}

async function atOnce(items, act) {
  let next = 0;
  const work = async () => {
    while (next < items.length) await act(items[(next += 1) - 1]);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
}

// Those of the folders that exist: a tree is looked at from `base` down, and no deeper than there is something.
async function existing(bucketId, folders, base) {
  const wanted = new Set(folders);
  const below = new Map(); // folder -> those of its folders that are on the way to a wanted one
  for (const folder of folders) {
    for (let at = folder; at !== base && at; at = parentOf(at)) {
      if (!below.has(parentOf(at))) below.set(parentOf(at), new Set());
      below.get(parentOf(at)).add(at);
    }
  }
  const there = [];
  let level = [base];
  while (level.length > 0) {
    there.push(...level.filter((folder) => wanted.has(folder)));
    const next = [];
    await atOnce(level.filter((folder) => below.has(folder)), async (folder) => {
      const { rows } = await api.list(path`${bucketAt(bucketId)}/folders`, "folders", { query: { path: folder } });
      next.push(...rows.map((each) => each.path).filter((each) => below.get(folder).has(each)));
    });
    level = next;
  }
  return there;
}

// Files of a folder with one of these names, by name; those that are not stored yet are uploads, and no names.
async function presentIn(bucketId, folder, names) {
  const listed = async (query) => (await api.list(path`${bucketAt(bucketId)}/files`, "files", {
    query: { path: folder || "/", status: "available", ...query }, rowsMax: LISTED_MAX })).rows;
  const found = new Map();
  const take = (files) => {
    for (const file of files) if (names.has(file.filename)) found.set(file.filename, [...(found.get(file.filename) || []), file]);
  };
  if (names.size > ONE_BY_ONE_MAX) take(await listed({}));
  else await atOnce([...names], async (name) => take((await listed({ filename: name, name })).filter((file) => file.filename === name)));
  return found;
}

function Clashes({ clashes, how, close }) {
  const [choices, setChoices] = useState(() => clashes.map(() => "keep"));
  const all = choices.every((each) => each === choices[0]) ? choices[0] : "";
  const isFor = (choice, clash) => choice !== "replace" || clash.mayReplace;
  // An admin may delete the files of all users, and any user may choose these names: each of them is asked about on its own.
  const isForAll = (choice, clash) => isFor(choice, clash) && (choice !== "replace" || clash.others.length === 0);
  const setAll = (choice) => setChoices(clashes.map((clash, at) => (isForAll(choice, clash) ? choice : choices[at])));
  const set = (index, choice) => setChoices(choices.map((each, at) => (at === index ? choice : each)));
  const kept = clashes.filter((clash) => !clash.mayReplace).length;
  const others = clashes.filter((clash) => clash.mayReplace && clash.others.length > 0).flatMap((clash) => clash.others);
  return html`<${Dialog} wide close=${() => close()} title="${counted(clashes.length, "name is", "names are")} already there">
    <form onSubmit=${(event) => {
      event.preventDefault();
      close(choices);
    }}>
    <p>${how}${kept > 0 ? ` ${counted(kept, "file")} cannot be replaced: you may not delete ${kept === 1 ? "it" : "them"}.` : ""}</p>
    ${others.length > 0 && html`<p class="banner warn">${counted(others.length, "file belongs", "files belong")} to other users: ${ownersOf(others)}. “Replace” for all leaves ${others.length === 1 ? "it" : "them"} alone.</p>`}
    ${clashes.length > 1 && html`<label>For all<select name="all" value=${all} onChange=${(event) => setAll(event.target.value)}>
      ${!all && html`<option value="">As chosen below</option>`}${Object.entries(CHOICES).filter(([value]) => clashes.some((clash) => isForAll(value, clash))).map(([value, text]) =>
        html`<option value=${value}>${text}</option>`)}</select></label>`}
    <ul class="chosen clashes">${clashes.slice(0, LINES_MAX).map((clash, index) => html`<${One} key=${index} clash=${clash} choice=${choices[index]} isFor=${isFor}
      set=${(choice) => set(index, choice)} />`)}</ul>
    ${clashes.length > LINES_MAX && html`<p>And ${counted(clashes.length - LINES_MAX, "more name")}, as chosen for all.</p>`}
    <footer class="kept"><button type="button" class="outline" onClick=${() => close()}>Cancel</button>
      <button type="submit">Continue</button></footer></form></${Dialog}>`;
}

function One({ clash, choice, isFor, set }) {
  const whole = joined(clash.wanted.path, clash.wanted.filename);
  return html`<li><${Located} name=${clash.wanted.filename} folder=${clash.wanted.path} /><select aria-label="What happens to ${whole}" value=${choice} onChange=${(event) => set(event.target.value)}>
    ${Object.entries(CHOICES).filter(([value]) => isFor(value, clash)).map(([value, text]) => html`<option value=${value}>${value === "replace" && clash.others.length > 0
      ? `Replace, with what belongs to ${ownersOf(clash.others)}` : text}</option>`)}</select></li>`;
}
