// A button that opens a list of actions. items: [{ text, run, tone, href, disabled }], falsy ones are left out.
import { html, useEffect, useId, useLayoutEffect, useRef, useState } from "../html.js";
import { notify } from "./toast.js";

export function Menu({ label, items, text = "⋯" }) {
  const [isOpen, setIsOpen] = useState(false);
  const button = useRef(null);
  const list = useRef(null);
  const id = useId();
  const at = useRef(null); // where the button was when the list was placed
  const close = () => {
    setIsOpen(false);
    button.current?.focus();
  };
  useLayoutEffect(() => {
    if (!isOpen) return;
    at.current = button.current.getBoundingClientRect();
    place(at.current, list.current);
    list.current.querySelector("[role=menuitem]")?.focus({ preventScroll: true });
  }, [isOpen]);
  useEffect(() => {
    if (!isOpen) return undefined;
    const outside = (event) => {
      if (!list.current?.contains(event.target) && !button.current?.contains(event.target)) setIsOpen(false);
    };
    const gone = () => setIsOpen(false);
    // A busy browser may report a scroll from before the click only now: the list is still in its place then.
    const scrolled = () => {
      const now = button.current?.getBoundingClientRect();
      if (now?.top !== at.current.top || now.left !== at.current.left) gone();
    };
    addEventListener("pointerdown", outside);
    addEventListener("scroll", scrolled, { passive: true });
    addEventListener("resize", gone);
    return () => {
      removeEventListener("pointerdown", outside);
      removeEventListener("scroll", scrolled);
      removeEventListener("resize", gone);
    };
  }, [isOpen]);
  async function chosen(item) {
    close();
    try {
      await item.run?.();
    } catch (error) {
      notify(`${error.message} ${error.advice || ""}`, "bad");
    }
  }
  function pressed(event) {
    const all = [...list.current.querySelectorAll("[role=menuitem]")];
    const at = all.indexOf(document.activeElement);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (next !== undefined) {
      event.preventDefault();
      all[(next + all.length) % all.length].focus();
    } else if (event.key === "Escape" || event.key === "Tab") {
      event.preventDefault();
      close();
    }
  }
  return html`<span class="menu"><button type="button" ref=${button} class="plain" aria-label=${label} title=${label}
    aria-haspopup="menu" aria-expanded=${isOpen} aria-controls=${isOpen ? id : undefined}
    onClick=${() => setIsOpen(!isOpen)}>${text}</button>
    ${isOpen && html`<ul role="menu" id=${id} ref=${list} aria-label=${label} onKeyDown=${pressed}>
      ${items.filter(Boolean).map((item) => html`<li role="none"><button type="button" role="menuitem" tabindex="-1"
        class="plain ${item.tone || ""}" disabled=${item.disabled} onClick=${() => chosen(item)}>${item.text}</button></li>`)}
    </ul>`}</span>`;
}

// Below the button, or above where there is no room; inside the window.
function place(anchor, list) {
  const { width, height } = list.getBoundingClientRect();
  const below = anchor.bottom + height < innerHeight;
  list.style.top = `${below ? anchor.bottom : Math.max(0, anchor.top - height)}px`;
  list.style.left = `${Math.max(4, Math.min(anchor.right - width, innerWidth - width - 4))}px`;
}
