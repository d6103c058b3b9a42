// A short table without search and selection, in the look of the others. columns: as of DataTable, unsorted.
import { html } from "../html.js";

export function PlainTable({ label, columns, rows, keyOf }) {
  return html`<div class="table-box inner"><div class="scroller" role="region" aria-label="Table: ${label}" tabindex="0"><table>
    <colgroup>${columns.map((column) => html`<col class=${column.hide || ""} style=${{ "--wide": column.width || "auto", "--small": column.small || column.width || "auto" }} />`)}</colgroup>
    <thead><tr>${columns.map((column) => html`<th scope="col" class="${column.align || ""} ${column.hide || ""}">
      ${column.title || html`<span class="unseen">Actions</span>`}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${keyOf(row)}>${columns.map((column) => html`<td
      class="${column.align || ""} ${column.hide || ""} ${column.wrap ? "wrap" : ""}">${column.render ? column.render(row) : row[column.key]}</td>`)}</tr>`)}
    </tbody></table></div></div>`;
}
