// Which columns of a table fit into its box: those that may be hidden go one class after the other, so that the others,
// the name above all, stay wide enough to be read.
import { html, useLayoutEffect, useState } from "../html.js";

const HIDDEN_FIRST = ["wide", "medium", "narrow"]; // classes of columns, see `hide` of DataTable
const ROOT_PX = 15; // until the box is measured
const SMALL_REM = 41.3; // a box of a phone: columns have their `small` widths
const NAME_REM = 11; // of a column without a width, at least
const NAME_SMALL_REM = 6.5;
const MARK_REM = 2.4;
const SPARE_REM = 3; // that the name gets before a hidden column comes back

const rem = (width) => Number.parseFloat(width);

// The columns that a box of so many rem has room for, each with its width in rem; 0 shares what is left. Pure.
export function fitting(columns, boxRem, hasMarks) {
  const isSmall = boxRem < SMALL_REM;
  const sized = columns.map((column) => ({ ...column, rem: rem((isSmall && column.small) || column.width || "0") || 0 }));
  const room = boxRem - (hasMarks ? MARK_REM : 0);
  const needed = (shown) => shown.reduce((sum, each) => sum + (each.rem || (isSmall ? NAME_SMALL_REM : NAME_REM)), 0);
  let shown = sized;
  let hiddenLast = [];
  for (const hidden of HIDDEN_FIRST) {
    if (needed(shown) <= room) break;
    hiddenLast = shown.filter((column) => column.hide === hidden);
    shown = shown.filter((column) => column.hide !== hidden);
  }
  if (isSmall) return shown;
  const chosen = new Set(shown); // and of the class that was hidden last, what fits beside a wider name
  for (const column of hiddenLast) if (needed([...chosen, column]) + SPARE_REM <= room) chosen.add(column);
  return sized.filter((column) => chosen.has(column));
}

// Those of the box that `ref` is on, measured again whenever its width changes.
export function useFitting(ref, columns, hasMarks) {
  const [boxRem, setBoxRem] = useState(innerWidth / ROOT_PX);
  useLayoutEffect(() => {
    const measure = () => {
      const remPx = Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
      if (ref.current) setBoxRem(ref.current.clientWidth / remPx);
    };
    const observer = new ResizeObserver(measure);
    observer.observe(ref.current);
    measure();
    return () => observer.disconnect();
  }, []);
  return fitting(columns, boxRem, hasMarks);
}

export const Columns = ({ columns, hasMarks }) => html`<colgroup>${hasMarks && html`<col class="mark" />`}${columns.map(
  (column) => html`<col key=${column.key} style=${{ width: column.rem ? `${column.rem}rem` : "auto" }} />`)}</colgroup>`;
