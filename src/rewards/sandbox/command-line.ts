/** The command line that starts a program at each level of isolation. */
import type { Interpreter } from "./interpreters.ts";
import { setUpScript } from "./set-up-script.ts";
import type { Isolation, SandboxLimits } from "./types.ts";

export interface Placed {
  /** Holds `files` and, at level `namespaces`, the empty `root`. */
  folder: string;
  program: readonly string[];
  interpreter: Interpreter | undefined;
  limits: SandboxLimits;
}

/** Beyond any real user; one each, so that the kernel counts the processes of each sandbox by itself. */
const firstUser = 1_000_000_000;
let users = 0;

export function commandLine(level: Isolation["level"], placed: Placed): [string, ...string[]] {
  return level === "namespaces" ? inNamespaces(placed) : inProcessGroup(placed);
}

function inNamespaces({ folder, program, interpreter, limits }: Placed): [string, ...string[]] {
  const root = process.getuid?.() === 0;
  const user = firstUser + (process.pid % 10_000) * 10_000 + (users++ % 10_000);
  const paths = interpreter?.paths ?? [];
  return [
    // When this process dies, so does unshare, with it process 1 of the namespace and with that one all others.
    ...(["setpriv", "--pdeathsig=KILL", "unshare", ...(root ? [] : ["--user", "--map-root-user"])] as const),
    ...["--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child=KILL", "--propagation=private"],
    ...["sh", "-c", setUpScript, "sandbox", `${folder}/root`, `${folder}/files`, `${limits.fileBytes}`],
    ...[root ? `${user}` : "", kernelLimits(limits, interpreter).join(" "), `${paths.length}`, ...paths, ...program],
  ];
}

function kernelLimits(limits: SandboxLimits, interpreter: Interpreter | undefined): string[] {
  const cpu = Math.ceil(limits.cpuSeconds);
  return [
    ...[`--cpu=${cpu}:${cpu + 1}`, `--nproc=${limits.processes}`, "--core=0", `--fsize=${limits.fileBytes}`],
    ...(interpreter?.limitAddressSpace ? [`--as=${limits.memoryBytes}`] : []),
  ];
}

/** What a plain shell can limit everywhere; the watcher does the rest. */
function inProcessGroup({ program, interpreter, limits }: Placed): [string, ...string[]] {
  const cpu = Math.ceil(limits.cpuSeconds);
  const ulimits = [
    `ulimit -S -t ${cpu}`,
    `ulimit -H -t ${cpu + 1}`,
    "ulimit -c 0",
    `ulimit -f ${Math.ceil(limits.fileBytes / 512)}`,
    ...(interpreter?.limitAddressSpace && process.platform === "linux"
      ? [`ulimit -v ${Math.ceil(limits.memoryBytes / 1024)}`]
      : []),
  ];
  return ["sh", "-c", `${ulimits.join("; ")}; echo ready >&3; exec 3>&-; exec "$@"`, "sandbox", ...program];
}
