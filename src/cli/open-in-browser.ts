/** Opens an address in the user's browser, where there is one. */
import { spawn } from "node:child_process";

/** Does nothing on a machine without a screen. A browser that cannot be started is not an error. */
export function openInBrowser(url: string): void {
  const { platform, env } = process;
  const hasScreen = platform !== "linux" || env.DISPLAY !== undefined || env.WAYLAND_DISPLAY !== undefined;
  if (!hasScreen || env.SSH_CONNECTION !== undefined) return;
  const opener: [string, ...string[]] =
    platform === "darwin" ? ["open"] : platform === "win32" ? ["cmd", "/c", "start", ""] : ["xdg-open"];
  const [program, ...before] = opener;
  const child = spawn(program, [...before, url], { stdio: "ignore", detached: true });
  child.on("error", () => {});
  child.unref();
}
