// Sizes, times and names for people. No markup.
import { now } from "./clock.js";

const UNITS = ["bytes", "kB", "MB", "GB", "TB", "PB", "EB"];

// 1500000 -> "1.5 MB", as the command line writes it.
export function size(bytes) {
  if (bytes === 1) return "1 byte";
  let value = bytes;
  let unit = 0;
  while (value >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return unit === 0 ? `${value} bytes` : `${value < 9.995 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

export const speed = (bytesPerSecond) => `${size(Math.round(bytesPerSecond))}/s`;

export function counted(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

// Seconds -> "2 h 5 min": the two largest units.
export function duration(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  let left = Math.max(0, Math.round(seconds));
  const words = [];
  for (const [unit, length] of units) {
    const count = Math.floor(left / length);
    left -= count * length;
    if (count > 0) words.push(`${count} ${unit}`);
    if (words.length === 2 || (words.length === 1 && count === 0)) break;
  }
  return words.join(" ") || "0 s";
}

// An RFC 3339 time in the zone of the reader: "2026-11-20 13:00"; "" stays "".
export function moment(text) {
  if (!text) return "";
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return text;
  const two = (number) => String(number).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}`;
}

// "5 min ago", "in 3 h"; the largest unit only.
export function relative(text, at = now()) {
  if (!text) return "";
  const seconds = (new Date(text).getTime() - at) / 1000;
  if (Number.isNaN(seconds)) return text;
  if (Math.abs(seconds) < 10) return "just now";
  const length = duration(Math.abs(seconds)).split(" ").slice(0, 2).join(" ");
  return seconds < 0 ? `${length} ago` : `in ${length}`;
}

// 8 digits of an id or a digest, for tables; the whole is in the title.
export const short = (id) => (id.length > 12 ? `${id.slice(0, 12)}…` : id);

// A Date as a value of <input type="datetime-local">, and back to RFC 3339.
export function localInput(date) {
  return moment(date.toISOString()).replace(" ", "T");
}

export const fromLocalInput = (value) => (value ? new Date(value).toISOString() : "");
