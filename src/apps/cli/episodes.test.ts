import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Command } from "commander";
import { expect, test, vi } from "vitest";
import { atifEpisode } from "../../integrations/harbor/atif.fixture.ts";
import { toAtif } from "../../integrations/harbor/atif.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { readEpisode } from "../../tracking/episodes.ts";
import { toJson } from "../../tracking/json-lines.ts";
import { register } from "./episodes.ts";

test("--as atif writes a file for each chosen episode, or JSON lines without an output", async () => {
  const folder = temporaryFolder("episodes");
  const episode = await atifEpisode();
  // Calls of a model that is not trained are left out.
  for (const step of episode.trajectories.flatMap(({ steps }) => steps)) step.policyVersion = 0;
  const line = toJson({ ...episode, taskId: "../a\x1b[2J" });
  const failed = toJson({ ...episode, trajectories: [{ ...episode.trajectories[0], reward: 0 }], correct: false });
  mkdirSync(join(folder, "episodes"));
  writeFileSync(join(folder, "episodes", "step-000001.jsonl"), `${line}\n${failed}\n${line}\n`);
  const printed = vi.spyOn(process.stdout, "write").mockReturnValue(true);
  const told = vi.spyOn(process.stderr, "write").mockReturnValue(true);
  const run = (...args: string[]) => {
    const command = new Command();
    register(command);
    return command.parseAsync(["export", folder, "--as", "atif", ...args], { from: "user" });
  };
  try {
    const expected = toAtif(readEpisode(line));
    const output = join(folder, "atif");
    await run("-o", output);
    expect(readdirSync(output)).toEqual(["000001.json", "000002.json"]);
    const text = readFileSync(join(output, "000002.json"), "utf8");
    expect(JSON.parse(text)).toEqual(JSON.parse(JSON.stringify(expected)));
    expect(text).not.toContain("\x1b");
    expect(told).toHaveBeenLastCalledWith(expect.stringContaining(`2 files written to ${output}`));
    await expect(run("-o", output)).rejects.toThrow("already exists");

    await run("--dedup", "--role", "agent");
    const { subagent_trajectories: _, ...own } = expected!;
    expect(printed.mock.calls.map(([lines]) => JSON.parse(String(lines)))).toEqual([JSON.parse(JSON.stringify(own))]);

    await run("--select", "all", "--val-fraction", "0.99", "-o", join(folder, "split"));
    const [rest, held] = ["split", "split-val"].map((name) => readdirSync(join(folder, name)).length);
    expect(rest! + held!).toBe(3);
    await expect(run("-o", join(folder, "none", "out"))).rejects.toThrow("cannot be written");
    expect(existsSync(join(folder, "none"))).toBe(false);
  } finally {
    vi.restoreAllMocks();
  }
});
