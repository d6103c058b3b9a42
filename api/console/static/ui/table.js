// The table of every list: search, filters, sorting, selection; only the rows in sight are in the document.
import { html, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "../html.js";
import { counted } from "../format.js";
import { replaceQuery, current } from "../router.js";
import { Columns, useFitting } from "./columns.js";
import { Empty, ErrorBox, Loading } from "./parts.js";

const ROW_PX = 41; // as --row in style.css
const WINDOWED_MIN = 150; // below, all rows are drawn
const MARGIN_ROWS = 12;

// columns: [{ key, title, render(row), value(row), align: "end", width, small, hide, sortable }]; `small`: the width on phones
// hide: "wide" | "medium" | "narrow": what is left out first where there is no room for all of them
// filters: [{ key, title, options: [[value, text]], accept(row, value) }]; search: { label, text(row) }
// actions(rows, clear): what can be done with the selected rows; without it nothing is selected.
// isFirst(row): whether a row is before all that are not, whatever the order; those are in the order of their first column.
// search.onText(text): told what is searched for.
// isKept: false where another table of the page has the address. noun: "file", for words; empty: shown where there is nothing at all; loading, error, refresh: of the list.
export function DataTable(props) {
  const { columns, rows, keyOf, search, filters = [], actions, noun = "row", sort: firstSort, isFirst } = props;
  const isKept = Boolean(search) && props.isKept !== false; // search, filters and order are in the address
  const query = isKept ? current().query : {};
  const [text, setText] = useState(query.q || "");
  const [chosen, setChosen] = useState(() => Object.fromEntries(filters.map((f) => [f.key, query[f.key] || ""])));
  const [sort, setSort] = useState(() => sortOf(query.sort) || firstSort || { key: columns[0].key, down: false });
  const [selected, setSelected] = useState(() => new Set());
  useEffect(() => search?.onText?.(text), [text]);
  useEffect(() => {
    if (!isKept) return;
    const isUsual = firstSort && sort.key === firstSort.key && sort.down === firstSort.down;
    replaceQuery({ ...current().query, q: text, ...chosen, sort: isUsual ? "" : `${sort.down ? "-" : ""}${sort.key}` });
  }, [text, chosen, sort]);
  const found = useMemo(() => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = rows.filter(
      (row) =>
        filters.every((f) => !chosen[f.key] || f.accept(row, chosen[f.key])) &&
        words.every((word) => search.text(row).toLowerCase().includes(word)),
    );
    const column = columns.find(({ key }) => key === sort.key);
    if (!isFirst) return sorted(kept, column, sort.down);
    const [first, others] = [kept.filter(isFirst), kept.filter((row) => !isFirst(row))];
    return [...sorted(first, columns[0], column === columns[0] && sort.down), ...sorted(others, column, sort.down)];
  }, [rows, text, chosen, sort]);
  const marked = useMemo(() => found.filter((row) => selected.has(keyOf(row))), [found, selected]);
  const clear = () => setSelected(new Set());
  const isNarrowed = Boolean(text || Object.values(chosen).some(Boolean));
  const all = { ...props, found, marked, selected, setSelected, sort, setSort };
  return html`<div class="table-box">
    <${Toolbar} ...${{ search, filters, text, setText, chosen, setChosen, noun }} found=${found.length}
      total=${rows.length} isUnknown=${rows.length === 0 && Boolean(props.isLoading || props.error)} isLoading=${props.isLoading} marked=${marked} clear=${clear}
      actions=${actions && actions(marked, clear)} />
    <${ErrorBox} error=${props.error} retry=${props.refresh} />
    ${props.isLoading && rows.length === 0
      ? html`<${Loading} lines=${8} />`
      : rows.length === 0 && !props.error
        ? props.empty
        : found.length === 0 && isNarrowed
          ? html`<${Empty} title="No ${noun} fits."><button type="button" class="small outline" onClick=${() => {
              setText("");
              setChosen({});
            }}>Show all</button></${Empty}>`
          : found.length > 0 && html`<${Rows} ...${all} />`}
  </div>`;
}

function Toolbar({ search, filters, text, setText, chosen, setChosen, noun, found, total, isUnknown, isLoading, marked, clear, actions }) {
  const bar = useRef(null);
  useLayoutEffect(() => {
    const measure = () => {
      const { position } = getComputedStyle(bar.current);
      bar.current.parentElement.style.setProperty("--bar", `${position === "sticky" ? bar.current.offsetHeight : 0}px`);
    };
    const observer = new ResizeObserver(measure);
    observer.observe(bar.current);
    return () => observer.disconnect();
  }, []);
  const count = found === total ? counted(total, noun) : `${found.toLocaleString("en")} of ${counted(total, noun)}`;
  return html`<div class="toolbar" ref=${bar}>
    ${marked.length > 0 && actions
      ? html`<strong role="status">${counted(marked.length, noun)} selected</strong><div class="actions">${actions}
          <button type="button" class="small outline" onClick=${clear}>Clear</button></div>`
      : html`${search && html`<input type="search" value=${text} placeholder=${search.label} aria-label=${search.label}
            onInput=${(event) => setText(event.target.value)} />`}
          ${filters.map((f) => html`<select aria-label=${f.title} value=${chosen[f.key] || ""} onChange=${(event) =>
            setChosen({ ...chosen, [f.key]: event.target.value })}><option value="">${f.title}: all</option>
            ${f.options.map(([value, name]) => html`<option value=${value}>${name}</option>`)}</select>`)}
          <span class="count" role="status">${isUnknown ? "" : `${count}${isLoading ? " so far" : ""}`}</span>`}
  </div>`;
}

function Rows({ label, columns: all, found, keyOf, actions, selected, setSelected, sort, setSort, marked, nameOf }) {
  const box = useRef(null);
  const body = useRef(null);
  const columns = useFitting(box, all, Boolean(actions));
  const [first, last] = useWindow(body, found.length);
  const shown = found.slice(first, last);
  const toggle = (key) => {
    const next = new Set(selected);
    if (!next.delete(key)) next.add(key);
    setSelected(next);
  };
  const span = columns.length + (actions ? 1 : 0);
  return html`<div class="rows" ref=${box}><table aria-label=${label} aria-rowcount=${found.length + 1}>
    <${Columns} columns=${columns} hasMarks=${Boolean(actions)} />
    <thead><tr aria-rowindex="1">${actions && html`<th scope="col" class="mark"><input type="checkbox"
      aria-label="Select all" checked=${marked.length === found.length} indeterminate=${marked.length > 0 && marked.length < found.length}
      onChange=${(event) => setSelected(new Set(event.target.checked ? found.map(keyOf) : []))} /></th>`}
      ${columns.map((column) => html`<${Head} column=${column} sort=${sort} setSort=${setSort} />`)}</tr></thead>
    <tbody ref=${body}>
      ${first > 0 && html`<tr class="space" aria-hidden="true"><td colspan=${span} style=${{ height: `${first * ROW_PX}px` }}></td></tr>`}
      ${shown.map((row, index) => {
        const key = keyOf(row);
        return html`<tr key=${key} aria-rowindex=${first + index + 2} class=${selected.has(key) ? "selected" : ""}>
          ${actions && html`<td class="mark"><input type="checkbox" checked=${selected.has(key)}
            aria-label="Select ${nameOf ? nameOf(row) : key}" onChange=${() => toggle(key)} /></td>`}
          ${columns.map((column) => html`<td class=${column.align || ""}>${
            column.render ? column.render(row) : row[column.key]}</td>`)}</tr>`;
      })}
      ${last < found.length && html`<tr class="space" aria-hidden="true"><td colspan=${span}
        style=${{ height: `${(found.length - last) * ROW_PX}px` }}></td></tr>`}
    </tbody></table></div>`;
}

function Head({ column, sort, setSort }) {
  const isSorted = sort.key === column.key;
  const class_ = column.align || "";
  if (column.sortable === false) {
    return html`<th scope="col" class=${class_}>${column.title || html`<span class="unseen">Actions</span>`}</th>`;
  }
  return html`<th scope="col" class=${class_} aria-sort=${isSorted ? (sort.down ? "descending" : "ascending") : "none"}>
    <button type="button" class="plain" onClick=${() => setSort({ key: column.key, down: isSorted ? !sort.down : false })}>
      ${column.title}<span aria-hidden="true" class="arrow">${isSorted ? (sort.down ? "▾" : "▴") : ""}</span></button></th>`;
}

// Which rows are in sight of the window, with some around: [first, behind the last].
function useWindow(body, count) {
  const [range, setRange] = useState([0, Math.min(count, WINDOWED_MIN)]);
  useLayoutEffect(() => {
    if (count <= WINDOWED_MIN) {
      setRange([0, count]);
      return undefined;
    }
    let frame = 0;
    const measure = () => {
      frame = 0;
      if (!body.current) return;
      const top = -body.current.getBoundingClientRect().top; // sticky heads cover some rows: MARGIN_ROWS are more
      const first = Math.max(0, Math.min(Math.floor(top / ROW_PX) - MARGIN_ROWS, count - 1));
      const last = Math.min(count, Math.ceil((top + innerHeight) / ROW_PX) + MARGIN_ROWS);
      setRange((old) => (old[0] === first && old[1] === last ? old : [first, Math.max(last, first + 1)]));
    };
    const soon = () => {
      frame ||= requestAnimationFrame(measure);
    };
    measure();
    addEventListener("scroll", soon, { passive: true });
    addEventListener("resize", soon);
    return () => {
      cancelAnimationFrame(frame);
      removeEventListener("scroll", soon);
      removeEventListener("resize", soon);
    };
  }, [count]);
  return [Math.min(range[0], count), Math.min(Math.max(range[1], 0), count)];
}

function sortOf(text) {
  return text ? { key: text.replace(/^-/, ""), down: text.startsWith("-") } : null;
}

function sorted(rows, column, isDown) {
  if (!column || column.sortable === false) return rows;
  const valueOf = column.value || ((row) => row[column.key]);
  const collator = new Intl.Collator(undefined, { numeric: true });
  const sign = isDown ? -1 : 1;
  return rows
    .map((row) => [valueOf(row), row])
    .sort(([a], [b]) => sign * (typeof a === "number" && typeof b === "number" ? a - b : collator.compare(String(a), String(b))))
    .map(([, row]) => row);
}
