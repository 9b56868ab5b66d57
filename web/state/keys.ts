/** Keyboard shortcuts. The part of the page that was opened last answers a key first. */
import { useLayoutEffect, useRef } from "preact/hooks";

export type Shortcuts = Readonly<Record<string, () => void>>;

const active: { current: Shortcuts }[] = [];

const isTyping = (target: EventTarget | null) =>
  target instanceof HTMLElement &&
  target.closest("input:not([type=range]):not([type=checkbox]), textarea, select") !== null;

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (isTyping(event.target)) {
    if (event.key === "Escape") (event.target as HTMLElement).blur();
    return;
  }
  if (document.querySelector("dialog[open]") !== null) return;
  const shortcut = active.findLast(({ current }) => event.key in current)?.current[event.key];
  if (shortcut === undefined) return;
  event.preventDefault();
  shortcut();
});

/** Shortcuts by `KeyboardEvent.key`, while the component is shown. */
export function useKeys(shortcuts: Shortcuts): void {
  const reference = useRef(shortcuts);
  reference.current = shortcuts;
  useLayoutEffect(() => {
    active.push(reference);
    return () => void active.splice(active.indexOf(reference), 1);
  }, []);
}

/** `/` moves to the page's search field. */
export function focusSearch(): void {
  document.querySelector<HTMLInputElement>("input[type=search]")?.focus();
}

/** Focuses the next or previous row; Enter then opens it, as it does any link. */
export function moveFocus(by: 1 | -1): void {
  const rows = [...document.querySelectorAll<HTMLElement>("[data-row]")];
  const at = rows.indexOf(document.activeElement as HTMLElement);
  const seen = rows.findIndex((row) => row.getBoundingClientRect().top > 60);
  const next = at >= 0 ? at + by : Math.max(0, seen);
  rows[next]?.focus({ preventScroll: true });
  rows[next]?.scrollIntoView({ block: "nearest" });
}
