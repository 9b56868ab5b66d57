/** Harbor tasks as a dataset: a folder of tasks or a data set by name, each checked before anything runs. */
import { spawnSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parse } from "smol-toml";
import { RunError, UserError } from "../../base/errors.ts";
import { nearest } from "../../base/text.ts";
import { isObject } from "../../base/values.ts";
import { type Dataset, fromRows } from "../../data/dataset.ts";

/** A task of Harbor, for `harbor()`. */
export interface HarborTask {
  /** Its folder. */
  path: string;
  name: string;
  instruction: string;
}

/** @returns the folders of the tasks in a folder, or the folder itself if it is a task */
export function taskFolders(folder: string): string[] {
  const root = resolve(folder);
  if (existsSync(join(root, "task.toml"))) return [root];
  const names = existsSync(root) ? readdirSync(root).sort() : [];
  const folders = names.map((name) => join(root, name)).filter((path) => existsSync(join(path, "task.toml")));
  if (folders.length > 0) return folders;
  throw new UserError(`${folder} contains no Harbor task (a folder with task.toml)`);
}

export interface HarborTasksOptions {
  /** Of a data set's name: a registry file of Harbor, or its address. Default: Harbor's own registry. */
  registry?: string;
}

/**
 * All tasks of a folder or of a data set's name (`name@version`), checked: an unknown key, a limit that is missing or not positive, or a missing file is an error.
 *
 * @throws UserError listing what is wrong with the tasks
 * @example
 * defineExperiment({ train: harborTasks("./tasks"), workflow: harbor({ agent: "pi" }) })
 */
export function harborTasks(folder: string, { registry }: HarborTasksOptions = {}): Dataset<HarborTask> {
  const isName = isDatasetName(folder) && !existsSync(folder);
  const tasks = (isName ? downloadDataset(folder, registry) : taskFolders(folder)).map(readTask);
  const problems = tasks.flatMap(({ name, problems }) => problems.map((problem) => `${name}: ${problem}`));
  if (problems.length > 0) {
    const more = problems.length > 20 ? `\n  and ${problems.length - 20} more` : "";
    throw new UserError(`the tasks of ${folder} are not valid:\n  ${problems.slice(0, 20).join("\n  ")}${more}`, {
      hint: `"hone tasks check ${folder}" lists everything, and tries each task`,
    });
  }
  const rows = tasks.map(({ path, name, instruction }) => ({ path, name, instruction }));
  return fromRows(isName ? folder : basename(resolve(folder)), rows, { id: ({ name }) => name });
}

// Data sets of Harbor by name, as Harbor's own registry client resolves them.

const script = (path: string) => fileURLToPath(new URL(`../../../${path}`, import.meta.url));

/** `name`, `name@version` or `organization/name@version`. */
const isDatasetName = (text: string) => /^[\w.-]+(\/[\w.-]+)?@[\w.:-]+$/.test(text);

/**
 * Synchronous, so that a script can define its datasets without `await`. Harbor keeps the tasks in its cache.
 *
 * @param registry a JSON file or its address; default: Harbor's own registry
 * @returns the folders of the tasks
 * @throws UserError if the registry does not have the data set; RunError if Harbor cannot be installed
 */
function downloadDataset(name: string, registry?: string): string[] {
  const setUp = ["environment", "harbor", "--json"];
  const prepared = spawnSync(process.execPath, [script("scripts/setup.mjs"), ...setUp], {
    encoding: "utf8",
    stdio: ["ignore", "pipe", "inherit"],
  });
  const { python, error } = JSON.parse(lastLine(prepared.stdout) || "{}") as { python?: string; error?: string };
  if (python === undefined) throw new RunError(`Harbor cannot be installed: ${error ?? "the set-up ended"}`);
  const args = [script("worker/hone_harbor/dataset.py"), name, ...(registry === undefined ? [] : [registry])];
  const env = { ...process.env, HARBOR_TELEMETRY: "0" };
  const found = spawnSync(python, args, { encoding: "utf8", env, maxBuffer: 2 ** 28 });
  if (found.status === 0) return JSON.parse(lastLine(found.stdout)) as string[];
  throw new UserError(`Harbor's data set ${name} cannot be downloaded: ${lastLine(found.stderr)}`, {
    hint: registry === undefined ? "check the name; { registry } names another registry" : `check ${registry}`,
  });
}

const lastLine = (text: string) => text.trim().split("\n").at(-1) ?? "";

// The folder of a Harbor task: which keys and files it may have. Checked before anything runs.

/** `limit`: a number of seconds above zero. `true`: a value. A table names its keys; in a list, those of each entry. */
type Shape =
  | true
  | "limit"
  | "amount"
  | { readonly [key: string]: Shape }
  | readonly [{ readonly [key: string]: Shape }];

const network = { network_mode: true, allowed_hosts: true } as const;
const healthcheck = {
  command: true,
  interval_sec: true,
  retries: true,
  start_interval_sec: true,
  start_period_sec: true,
  timeout_sec: "limit",
} as const;
const agent = { ...network, timeout_sec: "limit", user: true } as const;
const environment = {
  ...network,
  allow_internet: true,
  build_timeout_sec: "limit",
  cpus: "amount",
  docker_image: true,
  env: true,
  gpu_types: true,
  gpus: true,
  healthcheck,
  mcp_servers: [{ args: true, command: true, headers: true, name: true, transport: true, url: true }],
  memory: true,
  memory_mb: "amount",
  os: true,
  skills_dir: true,
  storage: true,
  storage_mb: "amount",
  tpu: { topology: true, type: true },
  workdir: true,
} as const;
const verifier = {
  ...network,
  collect: [{ command: true, service: true, timeout_sec: "limit", user: true }],
  env: true,
  environment,
  environment_mode: true,
  timeout_sec: "limit",
  user: true,
} as const;

/** The keys of task.toml in schema 1.4. `validators.e2e.ts` compares them with Harbor's own. */
export const taskShape = {
  agent,
  artifacts: true,
  environment,
  metadata: true,
  multi_step_reward_strategy: true,
  schema_version: true,
  solution: { env: true },
  source: true,
  steps: [{ agent, artifacts: true, healthcheck, min_reward: true, name: true, verifier }],
  task: { authors: [{ email: true, name: true }], description: true, keywords: true, name: true, version: true },
  verifier,
  version: true,
} as const satisfies Shape;

export interface TaskFolder {
  path: string;
  name: string;
  /** The parsed task.toml. */
  config: Record<string, unknown>;
  instruction: string;
  /** What is wrong with it, each as a sentence. A task with problems is not run. */
  problems: string[];
}

/** Reads a task's files. What is wrong with them is in `problems`. */
export function readTask(path: string): TaskFolder {
  const problems: string[] = [];
  const task: TaskFolder = { path, name: basename(path), config: {}, instruction: "", problems };
  const file = join(path, "task.toml");
  try {
    task.config = parse(readFileSync(file, "utf8"));
  } catch (error) {
    problems.push(`task.toml cannot be read: ${error instanceof Error ? error.message.split("\n", 1)[0] : error}`);
    return task;
  }
  const { config } = task;
  checkShape(config, taskShape, "", problems);
  const steps = Array.isArray(config.steps) ? config.steps.filter(isObject) : undefined;
  const need = (name: string, why: string): void => {
    if (!existsSync(join(path, name)) || !statSync(join(path, name)).isFile())
      problems.push(`${name} is missing (${why})`);
  };
  checkLimit(config, steps, problems);
  if (steps === undefined) {
    need("instruction.md", "the prompt of the agent");
    need("tests/test.sh", "the verifier");
    if (existsSync(join(path, "instruction.md"))) task.instruction = readFileSync(join(path, "instruction.md"), "utf8");
  } else {
    for (const { name } of steps) {
      need(`steps/${name}/instruction.md`, "the prompt of the step");
      if (!existsSync(join(path, "tests/test.sh"))) need(`steps/${name}/tests/test.sh`, "the verifier of the step");
    }
  }
  const { docker_image: image } = isObject(config.environment) ? config.environment : {};
  const definitions = ["environment/Dockerfile", "environment/docker-compose.yaml"];
  if (typeof image !== "string" && !definitions.some((name) => existsSync(join(path, name)))) {
    problems.push("environment/Dockerfile is missing, and [environment] has no docker_image");
  }
  return task;
}

/** Without a limit, a trial whose agent hangs would never end. */
function checkLimit(
  config: Record<string, unknown>,
  steps: Record<string, unknown>[] | undefined,
  problems: string[],
): void {
  const hasLimit = (table: unknown) =>
    isObject(table) && isObject(table.agent) && table.agent.timeout_sec !== undefined;
  if (hasLimit(config) || (steps !== undefined && steps.length > 0 && steps.every(hasLimit))) return;
  problems.push("[agent] has no timeout_sec, so the agent would have no time limit");
}

function checkShape(value: unknown, shape: Shape, at: string, problems: string[]): void {
  if (shape === true) return;
  if (shape === "limit" || shape === "amount") {
    if (typeof value === "number" && Number.isFinite(value) && value > 0) return;
    const unit = shape === "limit" ? "a number of seconds above 0" : "a number above 0";
    problems.push(`${at} is ${JSON.stringify(value)}; it must be ${unit}`);
    return;
  }
  if (Array.isArray(shape)) {
    if (!Array.isArray(value)) problems.push(`${at} must be a list of tables: [[${at}]]`);
    else
      for (const [index, entry] of value.entries()) checkShape(entry, shape[0] as Shape, `${at}[${index}]`, problems);
    return;
  }
  if (!isObject(value)) {
    problems.push(`${at} must be a table: [${at}]`);
    return;
  }
  for (const [key, entry] of Object.entries(value)) {
    const name = at === "" ? key : `${at}.${key}`;
    const known = Object.hasOwn(shape, key) ? (shape as Record<string, Shape>)[key] : undefined;
    if (known !== undefined) checkShape(entry, known, name, problems);
    else {
      const [near] = nearest(key, Object.keys(shape));
      problems.push(`${name} is not a key of Harbor's tasks${near === undefined ? "" : `; did you mean ${near}?`}`);
    }
  }
}
