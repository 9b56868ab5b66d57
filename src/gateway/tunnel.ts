/** Opens a tunnel to the gateway: starts cloudflared or ngrok, and reads the public address that it prints. */
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { RunError, UserError } from "../errors.ts";
import { isLoopback } from "../http/web-guard.ts";
import { guardGroup } from "../processes/group-guard.ts";

interface Program {
  args(port: number): string[];
  /** Finds the address in a line of its output. */
  address: RegExp;
  install: string;
}

/** `rllm.gateway.tunnel` names one of these, or an address. */
export const tunnelPrograms: Readonly<Record<string, Program>> = {
  cloudflared: {
    args: (port) => ["tunnel", "--no-autoupdate", "--url", `http://127.0.0.1:${port}`],
    // INF |  https://four-words-of-it.trycloudflare.com  |
    address: /\bINF \|\s+(https:\/\/[a-z0-9.-]+)\s+\|/,
    install: "install cloudflared (quick tunnels need no account)",
  },
  ngrok: {
    args: (port) => ["http", String(port), "--log=stdout", "--log-format=logfmt"],
    // lvl=info msg="started tunnel" obj=tunnels name=command_line addr=http://localhost:4100 url=https://....ngrok-free.app
    address: /msg="started tunnel".*\burl=(https:\/\/\S+)/,
    install: 'install ngrok, and save your account\'s token with "ngrok config add-authtoken ..."',
  },
};

export interface Tunnel {
  /** The public address, without a slash at its end. */
  url: string;
  close(): Promise<void>;
}

const keptLines = 8;

/**
 * @param port where the gateway listens or will listen
 * @param onEnd called with the reason if the program ends before it is closed
 * @throws UserError if the program is missing; RunError if it does not print an address in time, or ends
 */
export async function openTunnel(
  name: string,
  port: number,
  onEnd: (why: string) => void,
  timeoutSeconds = 60,
): Promise<Tunnel> {
  const program = tunnelPrograms[name] as Program;
  const child = spawn(name, program.args(port), { stdio: ["ignore", "pipe", "pipe"], detached: true });
  const lines: string[] = [];
  let open = true;
  const gone = new Promise<string>((resolve) => {
    child.once("error", (error: NodeJS.ErrnoException) => resolve(error.code === "ENOENT" ? "missing" : error.message));
    child.once("close", (code, signal) => resolve(`ended ${signal ? `by ${signal}` : `with exit code ${code}`}`));
  });
  const release = child.pid === undefined ? () => {} : guardGroup(child.pid);
  const said = () => lines.map((line) => `\n  ${line}`).join("");
  const address = new Promise<string>((resolve) => {
    // Both programs write to either stream, depending on their version.
    for (const stream of [child.stdout, child.stderr]) {
      createInterface({ input: stream }).on("line", (line) => {
        if (lines.push(line.slice(0, 500)) > keptLines) lines.shift();
        const found = program.address.exec(line)?.[1];
        if (found !== undefined) resolve(found);
      });
    }
  });
  async function close(): Promise<void> {
    open = false;
    child.kill("SIGTERM");
    const forced = setTimeout(() => child.kill("SIGKILL"), 3000);
    await gone;
    clearTimeout(forced);
    release();
  }
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<{ why: string }>((resolve) => {
    timer = setTimeout(
      () => resolve({ why: `printed no address within ${timeoutSeconds} seconds` }),
      timeoutSeconds * 1000,
    );
  });
  const first = await Promise.race([address, late, gone.then((why) => ({ why }))]);
  clearTimeout(timer);
  if (typeof first !== "string" || isLoopback(new URL(first).hostname)) {
    await close();
    if (typeof first === "string")
      throw new RunError(`${name} opened a tunnel at ${first}, which only this machine reaches`);
    if (first.why === "missing") {
      throw new UserError(`rllm.gateway.tunnel=${name}: the program ${name} is not installed`, {
        hint: `${program.install}, or set the key to the address of a tunnel of your own`,
      });
    }
    throw new RunError(`${name} opened no tunnel: it ${first.why}${said()}`, { hint: program.install });
  }
  gone.then((why) => {
    release();
    if (open) onEnd(`${name} ${why}; agents on other machines can no longer reach the gateway${said()}`);
  });
  // An idle tunnel does not keep this process alive.
  child.unref();
  for (const stream of [child.stdout, child.stderr]) (stream as unknown as { unref(): void }).unref();
  return { url: first.replace(/\/+$/, ""), close };
}
