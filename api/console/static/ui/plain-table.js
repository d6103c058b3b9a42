// A short table without search and selection, in the look of the others. columns: as of DataTable, unsorted.
import { html, useRef } from "../html.js";
import { Columns, useFitting } from "./columns.js";

export function PlainTable({ label, columns: all, rows, keyOf }) {
  const box = useRef(null);
  const columns = useFitting(box, all, false);
  return html`<div class="table-box inner"><div class="rows" ref=${box}><table aria-label=${label}>
    <${Columns} columns=${columns} />
    <thead><tr>${columns.map((column) => html`<th scope="col" class=${column.align || ""}>
      ${column.title || html`<span class="unseen">Actions</span>`}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${keyOf(row)}>${columns.map((column) => html`<td
      class="${column.align || ""} ${column.wrap ? "wrap" : ""}">${column.render ? column.render(row) : row[column.key]}</td>`)}</tr>`)}
    </tbody></table></div></div>`;
}
