/** Containers as sandboxes. Without a container engine these tests do not run, and say so. */
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { afterAll, expect, test } from "vitest";
import { container } from "./container.ts";
import { hostImage, testEngine } from "./host-image.fixture.ts";

const engine = await testEngine();
if (typeof engine === "string") console.warn(`NOT RUN: containers (${engine})`);
const withEngine = test.skipIf(typeof engine === "string");
const image = typeof engine === "string" ? "" : await hostImage(engine);

/** Others may use containers at the same time. */
async function ownedIds(pid = process.pid): Promise<string[]> {
  if (typeof engine === "string") return [];
  const format = "{{.ID}} {{.Labels}}";
  const { stdout } = await engine.run(["ps", "-a", "--filter", "label=hone.owner", "--format", format]);
  const lines = stdout.split("\n").filter((line) => line.includes(`@${pid}@`));
  return lines.map((line) => line.split(" ", 1)[0] ?? "");
}

// A test process is ended without its exit handlers, so the container that waits would stay until the next run.
afterAll(async () => {
  for (const id of await ownedIds()) {
    if (typeof engine !== "string") await engine.run(["rm", "-f", "-v", id]);
  }
});

withEngine("commands and files, without a network; a limit ends the container", async () => {
  const open = container({ image, env: { WORD: "done" }, warm: 1 });
  const cleans: (() => Promise<void>)[] = [];
  const box = await open({ tearDown: (clean) => cleans.push(clean) });
  await box.write("/app/a b/$(touch x)/it's.txt", "line\n");
  expect(await box.read("/app/a b/$(touch x)/it's.txt")).toBe("line\n");
  await expect(box.read("/none")).rejects.toThrow(/cannot be read.*No such file/);
  expect(await box.exec('echo "$WORD"; cat; exit 3', { input: "in", cwd: "/app" })).toEqual({
    ...{ exitCode: 3, stdout: "done\nin", stderr: "" },
  });
  expect((await box.exec("exec 3<>/dev/tcp/127.0.0.1/9")).exitCode).not.toBe(0);
  const { commands, files } = await box.record();
  expect(commands?.map(({ command, exitCode }) => [command.slice(0, 11), exitCode])).toEqual([
    ['echo "$WORD', 3],
    ["exec 3<>/de", 1],
  ]);
  expect(files).toContainEqual({ path: "/app/a b/$(touch x)/it's.txt", change: "added" });
  const [loud, slow] = [await open(), await open()];
  expect(await loud.exec("while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done", { maxOutput: 1000 })).toMatchObject(
    {
      ...{ ended: "output", exitCode: 137 },
    },
  );
  expect(await slow.exec("sleep 100", { timeoutSeconds: 1 })).toMatchObject({ ended: "timeout" });
  await expect(slow.exec("true")).rejects.toThrow(/took longer than 1 s/);
  await Promise.all([...cleans.map((clean) => clean()), loud.close(), slow.close()]);
  // The one that waits for the next rollout.
  expect(open.counts()).toEqual({ started: 4, ready: 2, unused: 0, waiting: 1 });
  expect(await ownedIds()).toHaveLength(1);
  await (await container({ image })()).close();
  await (await open()).close();
});

withEngine("the containers of a killed process are removed by the next one", async () => {
  const file = fileURLToPath(new URL("./container.ts", import.meta.url));
  const script = (last: string) =>
    `import(${JSON.stringify(file)}).then(async ({ container }) => { const box = await container({ image: ${JSON.stringify(image)} })(); ${last} })`;
  const tsx = (code: string) => ["--import", "tsx", "-e", code];
  const killed = spawn(process.execPath, tsx(script("console.log('up'); setInterval(() => {}, 1000)")));
  await once(killed.stdout, "data");
  expect(await ownedIds(killed.pid)).toHaveLength(1);
  killed.kill("SIGKILL");
  await once(killed, "close");
  execFileSync(process.execPath, tsx(script("await box.close()")));
  expect(await ownedIds(killed.pid)).toEqual([]);
});
