import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { makeTask } from "./make-tasks.fixture.ts";
import { harborTasks, readTask } from "./tasks.ts";

const root = mkdtempSync(join(tmpdir(), "harbor-tasks-"));
afterAll(() => rmSync(root, { recursive: true, force: true }));

let made = 0;
function taskWith(
  toml: string,
  { without = [] as string[], ...files }: Record<string, string> & { without?: string[] } = {},
) {
  const folder = makeTask(join(root, `set-${made++}`), "image");
  writeFileSync(join(folder, "task.toml"), toml);
  for (const name of without) rmSync(join(folder, name), { recursive: true });
  for (const [name, content] of Object.entries(files)) {
    mkdirSync(join(folder, name, ".."), { recursive: true });
    writeFileSync(join(folder, name), content as string);
  }
  return readTask(folder);
}

const limit = "[agent]\ntimeout_sec = 60\n";

test.each([
  ["a good task", limit, {}, []],
  ["bad TOML", "[agent", {}, [/^task\.toml cannot be read/]],
  ["an empty file", "", {}, [/no timeout_sec/]],
  ["a misspelled key", `${limit}timout_sec = 5\n`, {}, [/^agent\.timout_sec is not a key .*did you mean timeout_sec/]],
  [
    "a misspelled section",
    `${limit}[verfier]\ntimeout_sec = 5\n`,
    {},
    [/^verfier is not a key .*did you mean verifier/],
  ],
  ["a negative limit", "[agent]\ntimeout_sec = -5\n", {}, [/agent\.timeout_sec is -5; it must be a number of seconds/]],
  ["a limit as text", `${limit}[verifier]\ntimeout_sec = "60"\n`, {}, [/verifier\.timeout_sec is "60"/]],
  ["an infinite limit", "[agent]\ntimeout_sec = inf\n", {}, [/agent\.timeout_sec is null/]],
  ["no processors", `${limit}[environment]\ncpus = 0\n`, {}, [/environment\.cpus is 0; it must be a number above 0/]],
  ["a value in place of a section", "agent = 5\n", {}, [/agent must be a table/, /no timeout_sec/]],
  ["no instruction", limit, { without: ["instruction.md"] }, [/^instruction\.md is missing/]],
  ["no verifier", limit, { without: ["tests"] }, [/^tests\/test\.sh is missing/]],
  ["no environment", limit, { without: ["environment"] }, [/^environment\/Dockerfile is missing/]],
  ["an image", `${limit}[environment]\ndocker_image = "x"\n`, { without: ["environment"] }, []],
  ["older keys", `version = "1.0"\n${limit}[environment]\nmemory = "2G"\nallow_internet = true\n`, {}, []],
  ["steps", '[[steps]]\nname = "one"\n[steps.agent]\ntimeout_sec = 5\n', { "steps/one/instruction.md": "x" }, []],
  ["a step without prompt", `${limit}[[steps]]\nname = "one"\n`, {}, [/^steps\/one\/instruction\.md is missing/]],
  [
    "a step's key",
    `${limit}[[steps]]\nname = "a"\nminimum = 1\n`,
    { "steps/a/instruction.md": "" },
    [/steps\[0\]\.minimum/],
  ],
  [
    "collected state",
    `${limit}[[verifier.collect]]\ncommand = "x"\ntimeout_sec = 0\n`,
    {},
    [/collect\[0\]\.timeout_sec is 0/],
  ],
])("%s", (_, toml, files, problems) => {
  const found = taskWith(toml, files as Record<string, string>).problems;
  expect(found).toEqual(problems.map((problem) => expect.stringMatching(problem)));
});

test("harborTasks refuses a folder with a bad task, and names all problems", () => {
  const folder = join(root, "several");
  makeTask(folder, "image", "one");
  expect(harborTasks(folder).task(0)).toMatchObject({
    id: "write-one",
    row: { instruction: expect.stringContaining("word one") },
  });
  writeFileSync(join(makeTask(folder, "image", "two"), "task.toml"), "[agent]\ntimeout_sec = 0\nuser_name = 1\n");
  expect(() => harborTasks(folder)).toThrow(/write-two: agent\.timeout_sec is 0.*\n.*write-two: agent\.user_name/);
  expect(() => harborTasks(join(root, "none"))).toThrow(/contains no Harbor task/);
});
