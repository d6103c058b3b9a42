// Text that the page has, as a file for the user to keep.
const KEPT_MS = 1000; // until the browser has read it

export function save(text, name, type = "text/plain") {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), KEPT_MS);
}
