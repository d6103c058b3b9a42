// Which theme somebody chose, before anything is drawn; without a choice that of the system counts.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("filestore.theme");
  } catch {
    // Storage may be forbidden; then nothing is remembered.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
