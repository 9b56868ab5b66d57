/** An exported report contains its data: the answer of each request that the page makes. */

const element = typeof document === "undefined" ? null : document.getElementById("hone-data");

/** Answers by path and sorted query, e.g. `/api/runs/toy/groups?kind=train&step=2`; undefined on a page that a server sent. */
export const embedded: Readonly<Record<string, unknown>> | undefined = element
  ? (JSON.parse(element.textContent ?? "{}") as Record<string, unknown>)
  : undefined;
