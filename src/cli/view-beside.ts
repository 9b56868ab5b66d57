/** Shows a run as a page while it trains: in a process of its own, which ends with this one and cannot harm the run. */
import { spawnWithParent } from "./spawn-with-parent.ts";

export function viewBeside(folder: string): void {
  const main = process.argv[1]!;
  const viewer = spawnWithParent([main, "view", folder, "--host", "127.0.0.1"]);
  viewer.on("error", () => {});
  viewer.unref();
  viewer.channel?.unref();
}
