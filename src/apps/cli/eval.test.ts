import { Command } from "commander";
import { afterEach, expect, test } from "vitest";
import type { Config } from "../../config/schema.ts";
import { makeTask } from "../../integrations/harbor/make-tasks.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { setLaunch, takeLaunch } from "../../trainer/experiment.ts";
import { register } from "./eval.ts";

const tasks = makeTask(temporaryFolder("eval"), "scratch");
afterEach(() => void takeLaunch());

/** @returns the settings that the measurement would have */
async function evaluate(...args: string[]): Promise<Config> {
  let found: Config | undefined;
  setLaunch({
    perform: (_experiment, { config }) => {
      found = config;
      return 0;
    },
  });
  const command = new Command();
  register(command);
  await command.parseAsync(args, { from: "user" });
  return found!;
}

test("--harbor and --agent are settings of the measurement, which other settings do not replace", async () => {
  const { rllm } = await evaluate("--harbor", tasks, "--agent", "codex", "rllm.remote_runtime.harbor.network=host");
  expect(rllm.remote_runtime).toMatchObject({
    enabled: true,
    backend: "harbor",
    harbor: { agent: "codex", network: "host" },
  });
  expect(rllm.trainer.experiment_name).toBe("harbor-codex-write-done");
  expect((await evaluate("--harbor", tasks)).rllm.remote_runtime.harbor.agent).toBe("pi");
});

test.each([
  [["./train.ts", "--harbor", tasks], /measures without a script, but .\/train.ts is given/],
  [["./train.ts", "--agent", "pi"], /--agent requires --harbor/],
  [["./train.ts", "--registry", "r.json"], /--registry requires --harbor/],
  [[], /name the script of an experiment, or tasks with --harbor/],
  [["--harbor", "./nowhere"], /contains no Harbor task/],
])("%j is refused", async (args, message) => {
  await expect(evaluate(...args)).rejects.toThrow(message);
});
