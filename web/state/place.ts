/** Where in a run the page is: the step that the tabs share, the addresses of the tabs, and the window's title. */
import { address, parameter, path, queryOf } from "./address.ts";

interface ShownStep {
  step: string;
  kind: string;
}

/** The segments of the address: `/runs/toy/episodes/t12.5` is `["runs", "toy", "episodes", "t12.5"]`. */
const segments = () => path.value.split("/").slice(1).map(decodeURIComponent);

/** The step of this view; "" for the newest. Undefined if the view has no step of its own. */
function shownStep(): ShownStep | undefined {
  const [, , view = "", item = ""] = segments();
  const key = view === "task" ? parameter("b") : item;
  const [, kind, step] = /^([tv])(\d+)\./.exec(key) ?? [];
  if (step !== undefined) return { step, kind: kind === "v" ? "validation" : "" };
  return view === "task" ? undefined : { step: parameter("step"), kind: parameter("kind") };
}

/** Whether the view is about episodes of training or of validation. */
export const shownKind = () => (parameter("kind") === "validation" ? "validation" : "train");

/** The step of the address among those that the view has: the asked one or the one before it; by default the newest. */
export function chosenStep(steps: readonly number[]): number {
  const asked = parameter("step");
  const found = asked === "" ? steps.at(-1) : (steps.findLast((step) => step <= Number(asked)) ?? steps[0]);
  return found ?? 0;
}

/** What a list of episodes shows. An episode that was opened from the list has the same parameters. */
export const listParameters = () => ({
  filter: parameter("filter"),
  sort: parameter("sort"),
  order: parameter("order"),
  q: parameter("q"),
});

/** The address of a tab: as the tab was left, at the step that is shown now. */
export function tabAddress(run: string, tab: string): string {
  const tabPath = tab === "" ? ["runs", run] : ["runs", run, tab];
  const [, , view = "", item = ""] = segments();
  const fromList = tab === "episodes" && view === tab && item !== "" && Object.values(listParameters()).some(Boolean);
  return address(tabPath, { ...queryOf(address(tabPath)), ...(fromList ? listParameters() : {}), ...shownStep() });
}

/** The address of an episode; with its place if it is in a list of chosen or sorted episodes. */
export function episodeAddress(run: string, key: string, place: number, find?: string): string {
  const list = listParameters();
  const listed = Object.values(list).some(Boolean);
  return address(["runs", run, "episodes", key], { ...list, place: listed ? place : null, find });
}

/** The tab of a view that has none of its own. */
export const tabOf = (view: string): string => (view === "group" || view === "task" ? "groups" : view);

/** The address one level up. */
export function addressAbove(): string {
  const [area, run = "", view = "", item = ""] = segments();
  if (area !== "runs" || view === "") return "/";
  return tabAddress(run, tabOf(view) !== view || item !== "" ? tabOf(view) : "");
}

/** E.g. `toy: groups, step 12 - Hone`. */
export function title(tabs: readonly (readonly [name: string, label: string])[]): string {
  const [area, run = "", view = "", item = ""] = segments();
  if (area === "compare") return `Compare ${parameter("runs").replaceAll(",", ", ")} - Hone`;
  if (area !== "runs" || run === "") return "Runs - Hone";
  const label = tabs.find(([name]) => name === tabOf(view))?.[1].toLowerCase() ?? "";
  const step = shownStep()?.step ?? "";
  const what = item !== "" ? `episode ${item}` : view === "group" || view === "task" ? parameter("task") : label;
  return `${run}: ${what}${step !== "" && item === "" ? `, step ${step}` : ""} - Hone`;
}
