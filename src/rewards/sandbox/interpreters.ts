/** Where python and node really are, so that a sandbox can show them to a program and hide what lies beside them. */
import { homedir } from "node:os";
import { isAbsolute, relative } from "node:path";
import { UserError } from "../../errors.ts";
import { locatePython } from "../../python/find.ts";

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
        hint: "set the environment variable HONE_SANDBOX_PYTHON to a Python in a folder of its own",
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
