/**
 * Expands nested defaults lists to a flat list of the files that make up a configuration, in merging order, each with
 * its package (the section in which it is placed).
 */
import { UserError } from "../../base/errors.ts";
import { nearest } from "../../base/text.ts";
import { type Mistake, type Origin, oneLine } from "../tree.ts";
import { positionText } from "../yaml.ts";
import { type DefaultEntry, type LoadConfig, plainEntry, type SearchPath } from "./load-config.ts";
import type { Override } from "./overrides.ts";

interface ChosenConfig {
  /** The name under which it was loaded, e.g. `rllm/backend/verl`. */
  name: string;
  /** Dotted; empty for the root. */
  package: string;
  primary: boolean;
  /** The key of the group, unless the option has a defaults list of its own. */
  key?: string;
  origin: Origin;
}

export interface DefaultsList {
  configs: ChosenConfig[];
  /** The option of each group, by the key that overrides it. */
  choices: Map<string, string | null>;
  mistakes: Mistake[];
}

/** An option picked from the command line, or by `override` in a defaults list. */
interface Choice {
  option: string | string[] | null;
  origin: Origin;
  used: boolean;
  /** Whether it is from the command line rather than from a file. */
  external: boolean;
}

/** An item of a defaults list and its context. */
interface Item extends DefaultEntry {
  primary: boolean;
  /** The folder to which groups are relative. */
  folder: string;
  /** The package of the file that contains the list. */
  parentPackage: string;
  header: string | undefined;
}

interface Context {
  load: LoadConfig;
  path: SearchPath;
  choices: Map<string, Choice>;
  deletions: Map<string, { option: string | undefined; origin: Origin; used: boolean }>;
  appended: DefaultEntry[];
  known: Map<string, string | null>;
  /** By the group's path. */
  keysOfGroup: Map<string, Set<string>>;
  mistakes: Mistake[];
}

/** Limits the depth of files that include each other. */
const deepest = 50;

/**
 * @param groupOverrides the overrides whose key is a config group
 * @throws UserError when a file or an option does not exist, or lists contradict each other
 */
export function defaultsList(
  primary: string,
  groupOverrides: readonly Override[],
  load: LoadConfig,
  path: SearchPath,
): DefaultsList {
  const context: Context = {
    load,
    path,
    choices: new Map(),
    deletions: new Map(),
    appended: [],
    known: new Map(),
    keysOfGroup: new Map(),
    mistakes: [],
  };
  for (const override of groupOverrides) takeOverride(override, context);
  const parts = primary.split("/");
  const root: Item = {
    ...plainEntry("config", parts.slice(0, -1).join("/"), parts.at(-1) ?? "", { kind: "default" }),
    primary: true,
    folder: "",
    parentPackage: "",
    header: undefined,
  };
  const configs = expand(root, undefined, context, false, 0);
  requireUsed(context);
  const seen = new Set<string>();
  for (const { key, origin } of configs) {
    if (key !== undefined && seen.has(key))
      throw located(origin, `${key} appears more than once in the defaults lists`);
    if (key !== undefined) seen.add(key);
  }
  return { configs, choices: context.known, mistakes: context.mistakes };
}

function takeOverride({ kind, key, package: place, value, text }: Override, context: Context): void {
  const origin: Origin = { kind: "override", text };
  const wrong = (message: string) => context.mistakes.push({ where: oneLine(text), message });
  const target = place === undefined ? key : `${key}@${place}`;
  const option = optionOf(value);
  if (kind === "force-add") wrong(`++ cannot be used with the config group ${key}; write +${target}= or ${target}=`);
  else if (kind === "delete") {
    if (Array.isArray(option) || (option === undefined && value !== undefined)) {
      wrong(`~${target} takes the name of an option`);
    } else context.deletions.set(target, { option: option ?? undefined, origin, used: false });
  } else if (option === null) wrong(`to pick no option of ${key}, write ~${target}`);
  else if (option === undefined) {
    wrong(`${key} is a config group; it takes the name of an option (${context.path.options(key).join(", ")})`);
  } else if (kind === "add") {
    context.appended.push({ ...plainEntry("group", key, option, origin), package: place });
  } else context.choices.set(target, { option, origin, used: false, external: true });
}

function optionOf(value: Override["value"]): string | string[] | null | undefined {
  if (value?.type === "text") return value.value;
  if (value?.type === "null") return null;
  if (value?.type !== "list") return undefined;
  const names = value.items.map((item) => (item.type === "text" ? item.value : undefined));
  return names.every((name) => name !== undefined) ? (names as string[]) : undefined;
}

/** The files of an item, in merging order. `parent`: the file whose defaults list has the item. */
function expand(
  item: Item,
  parent: Item | undefined,
  context: Context,
  deferred: boolean,
  depth: number,
): ChosenConfig[] {
  if (depth > deepest)
    throw located(item.origin, `defaults lists include each other: ${configPath(item)} comes up again`);
  const { option } = item;
  if (isMissing(item)) item.header = undefined;
  else if (typeof option === "string") item.header = headerPackage(context.load(configPath(item))?.header);
  if (isDeleted(item, context)) return [];
  note(item, context);
  if (option === null) return [];
  if (isMissing(item)) {
    const options = context.path.options(groupPath(item));
    const message = `${overrideKey(item)} must be given: ${overrideKey(item)}=${options.join("|") || "OPTION"}`;
    context.mistakes.push({ where: positionText(item.origin), message });
    return [];
  }
  const loaded = context.load(configPath(item));
  if (loaded === undefined) {
    if (item.optional) return [];
    throw notFound(item, parent, context);
  }
  const itself: ChosenConfig = {
    name: configPath(item),
    package: finalPackage(item),
    primary: item.primary,
    origin: item.origin,
  };
  const entries = [...loaded.defaults];
  if (entries.length === 0 && !(item.primary && context.appended.length > 0)) {
    return [item.kind === "group" ? { ...itself, key: overrideKey(item) } : itself];
  }
  addSelf(entries, item, item.primary && context.appended.length > 0);
  if (item.primary) entries.push(...context.appended);
  const place = { primary: false, folder: groupPath(item), parentPackage: finalPackage(item), header: undefined };
  const items = entries.map((entry): Item => ({ ...entry, ...place }));
  for (const child of items) resolveGroupKeyword(child);
  takeFileOverrides(items, item, context, deferred);

  // The last item first, because its overrides apply to earlier items. References wait until every group is chosen.
  const children = new Map<Item, ChosenConfig[]>();
  const waiting: Item[] = [];
  for (const child of [...items].reverse()) {
    if (child.kind === "self") children.set(child, [itself]);
    if (child.kind === "self" || child.override) continue;
    const choice = child.kind === "group" ? context.choices.get(overrideKey(child)) : undefined;
    if (choice !== undefined) {
      choice.used = true;
      child.option = choice.option;
      if (choice.external) child.origin = choice.origin;
    }
    if (Array.isArray(child.option)) {
      const parts = optionItems(child, item).reverse();
      children.set(
        child,
        parts
          .map((part) => expand(part, item, context, deferred, depth + 1))
          .reverse()
          .flat(),
      );
    } else if (isReference(child)) waiting.push(child);
    else children.set(child, expand(child, item, context, deferred, depth + 1));
  }
  for (const child of waiting) {
    resolveReference(child, context);
    children.set(child, expand(child, item, context, true, depth + 1));
  }
  return children.size === 0 ? [itself] : items.flatMap((child) => children.get(child) ?? []);
}

/** Without `_self_`, a file is merged after the items of its defaults list. */
function addSelf(entries: DefaultEntry[], item: Item, hasMore: boolean): void {
  const [self, second] = entries.filter(({ kind }) => kind === "self");
  if (second !== undefined)
    throw located(second.origin, `_self_ appears twice in the defaults list of ${configPath(item)}`);
  if (self !== undefined || (entries.length > 0 && !hasMore && entries.every(({ override }) => override))) return;
  entries.push(plainEntry("self", "", "_self_", item.origin));
}

function takeFileOverrides(items: readonly Item[], parent: Item, context: Context, deferred: boolean): void {
  let last: Item | undefined;
  for (const item of items) {
    if (item.kind === "self") continue;
    if (!item.override) {
      if (last !== undefined && item.origin.kind !== "override") {
        throw located(item.origin, `${describe(item)} follows \`override ${describe(last)}\`; overrides come last`);
      }
      continue;
    }
    if (deferred) {
      const message = `${configPath(parent)} was picked by a reference; override is not possible in its defaults list`;
      throw located(item.origin, message);
    }
    last = item;
    const key = overrideKey(item);
    // The command line and outer files have priority.
    if (!context.choices.has(key)) {
      context.choices.set(key, { option: item.option, origin: item.origin, used: false, external: false });
    }
  }
}

/** Each option of a list is a separate file without a group key. */
function optionItems(item: Item, parent: Item): Item[] {
  return (item.option as string[]).map((option) => {
    if (option.includes("${"))
      throw located(item.origin, `a list of options cannot hold references: ${oneLine(option)}`);
    const parts = `${item.group}/${option}`.split("/");
    const name = parts.pop() ?? "";
    return {
      ...item,
      kind: "config",
      option: name,
      group: parts.join("/"),
      folder: groupPath(parent),
      override: false,
    };
  });
}

/** `${group}` in an option's name is the option of another group. */
function resolveReference(item: Item, { known }: Context): void {
  const written = item.kind === "config" ? configPath(item) : (item.option as string);
  const resolved = resolve(written, 0);
  if (item.kind === "group") {
    item.option = resolved;
    return;
  }
  const parts = resolved.split("/");
  item.option = parts.pop() ?? "";
  item.group = parts.join("/");
  item.absolute = true;

  function resolve(text: string, round: number): string {
    return text.replace(/\$\{([^${}]*)\}/g, (whole, name: string) => {
      const option = known.get(name.trim());
      if (typeof option !== "string" || round > 10) {
        const near = nearest(name, [...known.keys()]);
        const help =
          near.length > 0 ? `did you mean ${near.join(" or ")}?` : `there are ${[...known.keys()].join(", ")}`;
        throw located(item.origin, `${whole} is not a config group with an option; ${help}`);
      }
      return resolve(option, round + 1);
    });
  }
}

function note(item: Item, { known, keysOfGroup }: Context): void {
  if (item.kind !== "group" || Array.isArray(item.option)) return;
  const key = overrideKey(item);
  const earlier = known.get(key);
  if (known.has(key) && earlier !== item.option) {
    const message = `${key} is ${earlier} and ${item.option}; to pick another option write \`override ${key}: ${item.option}\``;
    throw located(item.origin, message);
  }
  known.set(key, item.option);
  const group = groupPath(item);
  keysOfGroup.set(group, (keysOfGroup.get(group) ?? new Set()).add(key));
}

function isDeleted(item: Item, { deletions }: Context): boolean {
  if (item.kind !== "group") return false;
  const deletion = deletions.get(overrideKey(item));
  if (deletion === undefined || (deletion.option !== undefined && deletion.option !== item.option)) return false;
  deletion.used = true;
  return true;
}

function requireUsed({ choices, deletions, known, keysOfGroup, mistakes }: Context): void {
  for (const [key, { used, option, origin, external }] of choices) {
    if (used) continue;
    const [group] = key.split("@") as [string];
    const others = [...(keysOfGroup.get(group) ?? nearest(key, [...known.keys()]))];
    const help = others.length > 0 ? `did you mean ${others.join(" or ")}?` : "";
    const add = external ? ` To add it: +${key}=${option}` : "";
    const message = `no defaults list has ${key}${help === "" ? "." : `; ${help}`}${add}`;
    mistakes.push({ where: positionText(origin), message: message.trim() });
  }
  for (const [key, { used, option, origin }] of deletions) {
    if (used) continue;
    const wanted = option === undefined ? key : `${key}: ${option}`;
    mistakes.push({
      where: positionText(origin),
      message: `no defaults list has ${wanted}, so nothing can be removed`,
    });
  }
}

function notFound(item: Item, parent: Item | undefined, { path }: Context): UserError {
  const name = configPath(item);
  const group = groupPath(item);
  const options = path.options(group);
  const option = String(item.option);
  const near = nearest(option, options);
  const searched = `Searched in ${path.entries.join(", ")}.`;
  if (item.primary) {
    const others = options.length > 0 ? ` There are ${options.join(", ")}.` : "";
    return new UserError(
      `there is no configuration ${oneLine(name)}${near.length > 0 ? `; did you mean ${near.join(" or ")}?` : ""}`,
      { hint: `${searched}${others}` },
    );
  }
  const help =
    near.length > 0
      ? `; did you mean ${near.join(" or ")}?`
      : options.length > 0
        ? `; ${group || "there"} has ${options.join(", ")}`
        : "";
  const by =
    item.origin.kind === "override" || parent === undefined ? "" : ` (in the defaults list of ${configPath(parent)})`;
  return new UserError(`${positionText(item.origin)}: there is no configuration ${oneLine(name)}${by}${help}`, {
    hint: searched,
  });
}

const located = (origin: Origin, message: string) => new UserError(`${positionText(origin)}: ${message}`);

const isMissing = ({ option }: Item) => option === "???";
const isReference = (item: Item) => (item.kind === "config" ? configPath(item) : String(item.option)).includes("${");
const describe = (item: Item) => (item.kind === "group" ? `${item.group}: ${String(item.option)}` : configPath(item));

function groupPath({ absolute, group, folder }: Item): string {
  if (absolute || folder === "") return group;
  return group === "" ? folder : `${folder}/${group}`;
}

function configPath(item: Item): string {
  const group = groupPath(item);
  return group === "" ? String(item.option) : `${group}/${String(item.option)}`;
}

/** The package in a header is relative to the root. */
function headerPackage(header: string | undefined): string | undefined {
  if (header === undefined || header === "_global_" || header.startsWith("_global_.")) return header;
  return header === "" ? "_global_" : `_global_.${header}`;
}

/** `_group_` in a package is the group's own path. */
function resolveGroupKeyword(item: Item): void {
  if (item.package?.includes("_group_")) {
    item.package = `_global_.${item.package.replaceAll("_group_", groupPath(item).replaceAll("/", "."))}`;
  }
}

function finalPackage(item: Item, withHeader = true): string {
  const { parentPackage, group } = item;
  const own = item.package ?? (withHeader ? item.header : undefined) ?? group.replaceAll("/", ".");
  const joined = parentPackage === "" || own === "" ? parentPackage + own : `${parentPackage}.${own}`;
  const root = joined.lastIndexOf("_global_");
  return root < 0 ? joined : joined.slice(root + "_global_.".length);
}

/** The name of a group in overrides; includes the package if it differs from the group's own. */
function overrideKey(item: Item): string {
  const group = groupPath(item);
  const place = finalPackage(item, false);
  return place === group.replaceAll("/", ".") ? group : `${group}@${place || "_global_"}`;
}
