/** The search path for named configurations: folders, and folders in Python packages. */
import { execFileSync } from "node:child_process";
import { readdirSync, statSync } from "node:fs";
import { homedir } from "node:os";
import { join, resolve } from "node:path";
import { UserError } from "../../errors.ts";
import { knownPython } from "../../python/find.ts";

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
        .flatMap((path) => readdirSync(join(path.get(), group)).filter((name) => name.endsWith(".yaml")));
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

const isFile = (path: string) => statSync(path, { throwIfNoEntry: false })?.isFile() ?? false;
const isFolder = (path: string) => statSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false;
