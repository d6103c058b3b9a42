// Preact with htm: what every page and component imports.
import { h, render, createContext, Fragment } from "./vendor/preact.js";
import { useLayoutEffect, useState } from "./vendor/preact-hooks.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
export { h, render, createContext, Fragment };
export {
  useCallback,
  useContext,
  useEffect,
  useErrorBoundary,
  useId,
  useLayoutEffect,
  useMemo,
  useReducer,
  useRef,
  useState,
} from "./vendor/preact-hooks.js";

// A value with listeners, for what outlives a page: the session, uploads, notices. `pauseMs`: listeners of what changes
// often are told after this time, once for all changes in it.
export function createStore(value, pauseMs = 0) {
  const listeners = new Set();
  let timer = 0;
  const tell = () => {
    timer = 0;
    for (const listener of [...listeners]) listener(value);
  };
  return {
    get: () => value,
    set(next) {
      value = typeof next === "function" ? next(value) : next;
      if (pauseMs === 0) tell();
      else timer ||= setTimeout(tell, pauseMs);
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

const itself = (value) => value;

// What a store holds, or what is `chosen` of it, drawn anew when that changes. Effects of other kinds run some frames
// after a component was drawn first: what changed until then would not be seen.
export function useStore(store, chosen = itself) {
  const [shown, setShown] = useState(() => chosen(store.get()));
  useLayoutEffect(() => {
    const changed = () => setShown(chosen(store.get()));
    changed();
    return store.subscribe(changed);
  }, []);
  return shown;
}
