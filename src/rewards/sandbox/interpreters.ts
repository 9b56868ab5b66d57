/** Where python and node really are, so that a sandbox can show them to a program and hide what lies beside them. */
import { execFile } from "node:child_process";
import { homedir } from "node:os";
import { isAbsolute, relative } from "node:path";
import { promisify } from "node:util";
import { UserError } from "../../errors.ts";

export interface Interpreter {
  /** Absolute path. */
  program: string;
  args: readonly string[];
  /** Folders and files beside the system's own that it needs. */
  paths: readonly string[];
  /** Whether it lives with a limit on its address space: V8 reserves far more than it uses. */
  limitAddressSpace: boolean;
}

const found = new Map<string, Promise<Interpreter>>();

/** @throws UserError when there is no such interpreter, or when it could only be shown together with the user's home */
export function findInterpreter(name: "python" | "node"): Promise<Interpreter> {
  const known = found.get(name) ?? (name === "node" ? findNode() : findPython());
  found.set(name, known);
  return known;
}

async function findNode(): Promise<Interpreter> {
  // One file; what it links to is the system's.
  return { program: process.execPath, args: [], paths: [process.execPath], limitAddressSpace: false };
}

const tellPlace = "import sys, json; print(json.dumps([sys.executable, sys.prefix, sys.base_prefix]))";

async function findPython(): Promise<Interpreter> {
  const asked = process.env.HONE_SANDBOX_PYTHON ?? "python3";
  const told = await promisify(execFile)(asked, ["-I", "-c", tellPlace]).catch((cause: Error) => {
    throw new UserError(`no Python to run code with: ${cause.message}`, {
      hint: "install python3, or name one in the environment variable HONE_SANDBOX_PYTHON",
      cause,
    });
  });
  const [program, ...prefixes] = JSON.parse(told.stdout) as string[];
  for (const prefix of prefixes) {
    if (holds(prefix, homedir())) {
      throw new UserError(`the Python at ${program} is installed into ${prefix}, which holds the home folder`, {
        hint: "name a Python in a folder of its own in the environment variable HONE_SANDBOX_PYTHON",
      });
    }
  }
  // -I: no site packages of the user, no environment; -B: the folders are read-only.
  return { program: program!, args: ["-I", "-B"], paths: [...new Set(prefixes)], limitAddressSpace: true };
}

function holds(folder: string, inner: string): boolean {
  const way = relative(folder, inner);
  return way === "" || (!way.startsWith("..") && !isAbsolute(way));
}
