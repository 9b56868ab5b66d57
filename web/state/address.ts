/**
 * The page's address. Every view is a URL, e.g. `/runs/toy/group?step=12&task=toy%2F3`. A report opened from a file keeps it
 * after `#`, since a file has one path.
 */
import { computed, effect, signal } from "@preact/signals";

const element = typeof document === "undefined" ? null : document.getElementById("hone-data");

/** Answers by path and sorted query, e.g. `/api/runs/toy/groups?kind=train&step=2`; undefined on a page that a server sent. */
export const embedded: Readonly<Record<string, unknown>> | undefined = element
  ? (JSON.parse(element.textContent ?? "{}") as Record<string, unknown>)
  : undefined;

const inHash = embedded !== undefined;

const read = () =>
  new URL(inHash ? location.hash.slice(1) || "/" : location.pathname + location.search, "http://page.invalid");

const current = signal(read());

export const path = computed(() => current.value.pathname);
/** A parameter of the address; "" if absent. */
export const parameter = (name: string): string => current.value.searchParams.get(name) ?? "";

/** The parameters with which each view was left, by path. */
const left = new Map<string, URLSearchParams>();
effect(() => void left.set(current.value.pathname, current.value.searchParams));

/** The parameters with which a view was left; none if it was not shown so far. */
export const queryOf = (viewPath: string): Record<string, string> => Object.fromEntries(left.get(viewPath) ?? []);

/** What an `href` must contain to lead to this address. */
export const href = (to: string): string => (inHash ? `#${to}` : to);

type Parameters = Readonly<Record<string, string | number | null | undefined>>;

/** The address of a view; empty parameters are left out. */
export function address(segments: readonly string[], parameters: Parameters = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, String(value));
  }
  const text = query.toString();
  return `/${segments.map(encodeURIComponent).join("/")}${text === "" ? "" : `?${text}`}`;
}

export function go(to: string, { replace = false } = {}): void {
  if (replace) history.replaceState(null, "", href(to));
  else history.pushState(null, "", href(to));
  const before = path.peek();
  current.value = read();
  if (path.peek() !== before) scrollTo(0, 0);
}

/** Changes parameters of this address, without a new entry in the browser's history. */
export function setParameters(changes: Parameters): void {
  const all = { ...Object.fromEntries(current.peek().searchParams), ...changes };
  go(address(current.peek().pathname.split("/").slice(1).map(decodeURIComponent), all), { replace: true });
}

/** Opens links to other views without a reload, and follows the browser's back and forward. */
export function followLinks(): void {
  const update = () => {
    current.value = read();
  };
  addEventListener("popstate", update);
  addEventListener("hashchange", update);
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a") : null;
    const to = link?.getAttribute("href");
    const changed = event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey;
    if (!to?.startsWith(href("/")) || changed || event.defaultPrevented) return;
    event.preventDefault();
    go(inHash ? to.slice(1) : to);
  });
}
