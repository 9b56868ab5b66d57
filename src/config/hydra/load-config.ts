/** Loads a configuration from the search path: its values, package header and defaults list, with origins. */
import { execFileSync } from "node:child_process";
import { readdirSync, statSync } from "node:fs";
import { homedir } from "node:os";
import { basename, dirname, join, resolve } from "node:path";
import { UserError } from "../../base/errors.ts";
import { knownPython } from "../../base/python.ts";
import { baseYaml, baseYamlFile } from "../base-yaml.ts";
import { mistakesError } from "../secrets.ts";
import { isShipped, type MapNode, type Mistake, type Node, type Origin, oneLine } from "../tree.ts";
import { positionText, readTextFile, readYaml } from "../yaml.ts";

interface LoadedConfig {
  file: string;
  /** The values without the defaults list. */
  tree: MapNode;
  /** The package in the header line `# @package ...`. */
  header: string | undefined;
  defaults: DefaultEntry[];
}

/** An item of a defaults list as written. */
export interface DefaultEntry {
  kind: "self" | "config" | "group";
  /** Whether the path starts at the search path's root instead of the file's folder. */
  absolute: boolean;
  /** `a/b` for both `a/b/c` and `a/b: c`. */
  group: string;
  /** The option or options: `c` for `a/b/c`; null selects no option. */
  option: string | string[] | null;
  package: string | undefined;
  optional: boolean;
  override: boolean;
  origin: Origin;
}

/** Shipped files do not change while a process runs. */
const shippedConfigs = new Map<string, LoadedConfig>();

/** An entry without keywords and package. `kind`, `group` and `option` as in {@link DefaultEntry}. */
export function plainEntry(
  kind: DefaultEntry["kind"],
  group: string,
  option: DefaultEntry["option"],
  origin: Origin,
): DefaultEntry {
  return { kind, group, option, origin, absolute: false, package: undefined, optional: false, override: false };
}

export type LoadConfig = (name: string) => LoadedConfig | undefined;

/** @returns a function that reads each file once and throws a UserError listing every mistake in a file */
export function configLoader(path: () => SearchPath): LoadConfig {
  const loaded = new Map<string, LoadedConfig | undefined>();
  return (name) => {
    const found = loaded.get(name);
    if (found !== undefined || loaded.has(name)) return found;
    const file = path().file(name);
    const config = file === undefined ? undefined : (shippedConfigs.get(file + name) ?? loadFile(file, name));
    if (config !== undefined && isShipped(config.file)) shippedConfigs.set(config.file + name, config);
    loaded.set(name, config);
    return config;
  };
}

function loadFile(file: string, config: string): LoadedConfig {
  const read = file === baseYamlFile ? { text: baseYaml() } : readTextFile(file);
  if (read.mistake !== undefined) throw mistakesError([read.mistake]);
  const origin = (line: number, column: number): Origin => ({ kind: "file", file, line, column, config });
  const { node, mistakes } = readYaml(read.text, origin);
  const complain = (at: Origin, message: string) => mistakes.push({ where: positionText(at), message });
  const header = packageHeader(read.text, (line, message) => complain(origin(line, 1), message));
  let tree: MapNode = { kind: "map", origin: origin(1, 1), entries: [] };
  let defaults: DefaultEntry[] = [];
  if (node?.kind === "map") {
    const list = node.entries.find(({ name }) => name === "defaults");
    tree = { ...node, entries: node.entries.filter((entry) => entry !== list) };
    if (list !== undefined) defaults = readDefaults(list.node, complain);
  } else if (node !== undefined && !(node.kind === "value" && node.value === null)) {
    complain(node.origin, "a configuration file must have keys with values");
  }
  if (mistakes.length > 0) throw mistakesError(mistakes as Mistake[]);
  return { file, tree, header, defaults };
}

/** Comment lines `# @key value` at the top of a file. */
function packageHeader(text: string, complain: (line: number, message: string) => void): string | undefined {
  let header: string | undefined;
  for (const [index, line] of text.split(/\r?\n/).entries()) {
    if (line.trim() === "") continue;
    if (!/^\s*#\s*@/.test(line)) break;
    const [key, value, ...more] = line
      .trim()
      .replace(/^#+\s*/, "")
      .split(/ +/);
    if (value === undefined || more.length > 0) complain(index + 1, "a header has the form `# @package name`");
    else if (key === "@package") header = value;
  }
  return header;
}

type Complain = (at: Origin, message: string) => void;

function readDefaults(node: Node, complain: Complain): DefaultEntry[] {
  if (node.kind !== "list") {
    complain(node.origin, "defaults must be a list: one `- group: option` per line");
    return [];
  }
  return node.items.flatMap((item) => readDefault(item, complain) ?? []);
}

function readDefault(item: Node, complain: Complain): DefaultEntry | undefined {
  const { origin } = item;
  if (item.kind === "value" && typeof item.value === "string") return configEntry(item.value, origin, complain);
  const [entry, ...others] = item.kind === "map" ? item.entries : [];
  if (entry === undefined || others.length > 0) {
    complain(origin, "an item of the defaults list must be a file name or one `group: option`");
    return undefined;
  }
  const { name, node } = entry;
  const words = name.split(" ");
  const [written, place] = splitPackage(words.pop() ?? "");
  const unknown = words.find((word) => word !== "optional" && word !== "override");
  if (unknown !== undefined || written.replace(/^\//, "") === "") {
    complain(origin, `${oneLine(name)} is not a config group; only optional and override may precede its name`);
    return undefined;
  }
  const option = optionOf(node);
  if (option === undefined) {
    complain(origin, `the option of ${oneLine(name)} must be a name, a list of names, or null`);
    return undefined;
  }
  return {
    kind: option === "_self_" ? "self" : "group",
    absolute: written.startsWith("/"),
    group: written.replace(/^\//, ""),
    option,
    package: place,
    optional: words.includes("optional"),
    override: words.includes("override"),
    origin,
  };
}

function configEntry(text: string, origin: Origin, complain: Complain): DefaultEntry | undefined {
  const [path, place] = splitPackage(text);
  const self = path === "_self_";
  if (self && place !== undefined) {
    complain(origin, "_self_ cannot have a package");
    return undefined;
  }
  const parts = path.replace(/^\//, "").split("/");
  return {
    ...plainEntry(self ? "self" : "config", parts.slice(0, -1).join("/"), parts.at(-1) ?? "", origin),
    absolute: path.startsWith("/"),
    package: place,
  };
}

/** `group@package`. `_here_` is the package of the file itself. */
function splitPackage(text: string): [string, string | undefined] {
  const at = text.indexOf("@");
  if (at < 0) return [text, undefined];
  const place = text.slice(at + 1).replace(/:.*$/s, "");
  return [text.slice(0, at), place === "_here_" ? "" : place];
}

function optionOf(node: Node): string | string[] | null | undefined {
  if (node.kind === "value") {
    if (node.value === null || typeof node.value === "string") return node.value;
    return undefined;
  }
  if (node.kind === "map") return undefined;
  const names = node.items.map((item) => (item.kind === "value" ? item.value : undefined));
  return names.every((name) => typeof name === "string") ? (names as string[]) : undefined;
}

// The search path for named configurations: folders, and folders in Python packages.

export interface SearchPath {
  /** The file of a named configuration, e.g. `rllm/backend/verl`; undefined if no folder contains it. */
  file(name: string): string | undefined;
  /** Whether any folder contains this group. */
  isGroup(group: string): boolean;
  /** The options of a group in all folders, sorted. */
  options(group: string): string[];
  /** The same path with entries appended. */
  with(entries: readonly string[]): SearchPath;
  /** The entries as given. */
  readonly entries: readonly string[];
}

/**
 * @param entries folders, `file://folder` or `pkg://python.package`; the first that contains a file wins. A Python
 * package is located only if no earlier folder contains the file.
 */
export function searchPath(entries: readonly string[], folders: readonly Folder[] = entries.map(folder)): SearchPath {
  return {
    entries,
    file: (name) => {
      const file = name.endsWith(".yaml") ? name : `${name}.yaml`;
      return first(folders, (path) => (isFile(join(path, file)) ? join(path, file) : undefined));
    },
    isGroup: (group) => folders.some((path) => path.known() && isFolder(join(path.get(), group))),
    options: (group) => {
      const names = folders
        .filter((path) => path.known() && isFolder(join(path.get(), group)))
        .flatMap((path) => filesIn(join(path.get(), group)).filter((name) => name.endsWith(".yaml")));
      return [...new Set(names.map((name) => name.slice(0, -".yaml".length)))].sort();
    },
    with: (more) =>
      more.length === 0
        ? searchPath(entries, folders)
        : searchPath([...entries, ...more], [...folders, ...more.map(folder)]),
  };
}

interface Folder {
  /** @throws UserError when a Python package is not installed */
  get(): string;
  /** Whether the folder exists and can be listed. */
  known(): boolean;
}

function first<T>(folders: readonly Folder[], look: (path: string) => T | undefined): T | undefined {
  for (const path of folders) {
    const found = look(path.get());
    if (found !== undefined) return found;
  }
  return undefined;
}

function folder(entry: string): Folder {
  if (entry.startsWith("pkg://")) return packageFolder(entry.slice("pkg://".length));
  const scheme = /^([a-z]+):\/\//.exec(entry)?.[1];
  if (scheme !== undefined && scheme !== "file") {
    throw new UserError(`the search path has ${entry}, but only folders, file:// and pkg:// can be searched`);
  }
  const path = resolve(entry.replace(/^file:\/\//, "").replace(/^~(?=\/|$)/, homedir()));
  return { get: () => path, known: () => true };
}

/** Cached per process, because each lookup starts a Python interpreter. */
const packageFolders = new Map<string, string | UserError>();

function packageFolder(name: string): Folder {
  const ask = (): string | UserError => {
    const found = packageFolders.get(name) ?? findPackage(name);
    packageFolders.set(name, found);
    return found;
  };
  return {
    get: () => {
      const found = ask();
      if (found instanceof UserError) throw found;
      return found;
    },
    known: () => !(ask() instanceof UserError),
  };
}

/** Finds the package without importing it, because importing verl takes seconds. */
const script = `
import importlib.util, os, sys
first, *rest = sys.argv[1].replace("/", ".").split(".")
spec = importlib.util.find_spec(first)
for place in (spec.submodule_search_locations or []) if spec else []:
    path = os.path.join(place, *rest)
    if os.path.isdir(path):
        print(path)
        break
`;

function findPackage(name: string): string | UserError {
  const [top = name] = name.split(/[./]/);
  if (!/^\w+(?:[./]\w+)*$/.test(name)) return new UserError(`pkg://${name} is not the name of a Python package`);
  const python = knownPython();
  const install = `${python} -m pip install --no-deps ${top}`;
  let output: string;
  try {
    output = execFileSync(python, ["-c", script, name], {
      encoding: "utf8",
      stdio: ["ignore", "pipe", "ignore"],
      timeout: 30_000,
    });
  } catch (error) {
    const reason = (error as NodeJS.ErrnoException).code === "ENOENT" ? "was not found" : "failed to run";
    return new UserError(`pkg://${name} is a Python package, but the Python ${python} ${reason}`, {
      hint: "Set HONE_PYTHON to a Python in which the package is installed.",
    });
  }
  const path = output.trim();
  if (path !== "") return path;
  return new UserError(`pkg://${name}: the Python package ${top} is not installed in ${python}`, {
    hint: `Install it (its configuration files are enough), or set HONE_PYTHON to a Python in which it is installed:\n  ${install}`,
  });
}

/** The shipped base.yaml is composed in memory, whether or not a file of its name exists. */
const isFile = (path: string) =>
  path === baseYamlFile || (statSync(path, { throwIfNoEntry: false })?.isFile() ?? false);
const filesIn = (path: string) => [
  ...readdirSync(path),
  ...(path === dirname(baseYamlFile) ? [basename(baseYamlFile)] : []),
];
const isFolder = (path: string) => statSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false;
