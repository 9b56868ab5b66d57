/** Locates python and node, so that a sandbox can show them to a program and hide everything else. */
import { homedir } from "node:os";
import { isAbsolute, relative } from "node:path";
import { UserError } from "../../errors.ts";
import { locatePython } from "../../python/find.ts";

export interface Interpreter {
  /** Absolute path. */
  program: string;
  args: readonly string[];
  /** Folders and files that it needs in addition to the system's own. */
  paths: readonly string[];
  /** False for V8, which reserves far more address space than it uses. */
  limitAddressSpace: boolean;
}

const found = new Map<string, Promise<Interpreter>>();

/** @throws UserError if the interpreter is missing, or if its folder contains the user's home folder */
export function findInterpreter(name: "python" | "node"): Promise<Interpreter> {
  const known = found.get(name) ?? (name === "node" ? findNode() : findPython());
  found.set(name, known);
  return known;
}

async function findNode(): Promise<Interpreter> {
  // A single file that needs only the system's libraries.
  return { program: process.execPath, args: [], paths: [process.execPath], limitAddressSpace: false };
}

async function findPython(): Promise<Interpreter> {
  const python = await locatePython(process.env.HONE_SANDBOX_PYTHON ?? "python3").catch((cause: Error) => {
    throw new UserError(`the sandbox found no Python to run code with: ${cause.message}`, {
      hint: "install python3, or set the environment variable HONE_SANDBOX_PYTHON to an executable",
      cause,
    });
  });
  for (const prefix of python.prefixes) {
    if (holds(prefix, homedir())) {
      throw new UserError(`${python.executable} is installed in ${prefix}, which contains the home folder`, {
        hint: "set the environment variable HONE_SANDBOX_PYTHON to a Python that is installed elsewhere",
      });
    }
  }
  // -I: no site packages of the user, no environment; -B: the folders are read-only.
  return { program: python.executable, args: ["-I", "-B"], paths: python.prefixes, limitAddressSpace: true };
}

function holds(folder: string, inner: string): boolean {
  const way = relative(folder, inner);
  return way === "" || (!way.startsWith("..") && !isAbsolute(way));
}
