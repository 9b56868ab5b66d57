/** Installs the node modules of a checkout and builds it. An installed package needs neither. */
import { existsSync, lstatSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { packageRoot } from "./paths.mjs";
import { SetupError, say, secondsSince } from "./report.mjs";
import { run } from "./run.mjs";
import { hashFiles, readStamp, replaceFolder, writeStamp } from "./stamp.mjs";

const modules = join(packageRoot, "node_modules");
const modulesStamp = join(modules, ".hone-stamp.json");
const build = join(packageRoot, "dist");
const buildStamp = join(build, ".stamp.json");

/** A checkout has sources and a lock file; a published package has its build. */
const isCheckout = () => existsSync(join(packageRoot, "package-lock.json")) && existsSync(join(packageRoot, "src"));

const lockHash = () => hashFiles([join(packageRoot, "package-lock.json")]);

function sourcesHash() {
  const sources = ["src", "web"].flatMap((folder) =>
    readdirSync(join(packageRoot, folder), { recursive: true, encoding: "utf8" })
      .filter((file) => /\.(tsx?|css|html)$/.test(file) && !/\.(test|e2e)\.tsx?$/.test(file))
      .map((file) => join(folder, file))
      .sort(),
  );
  const settings = ["package-lock.json", "tsconfig.json", "tsconfig.build.json", "web/tsconfig.json"].map((file) =>
    join(packageRoot, file),
  );
  return `${hashFiles([...settings, ...sources.map((file) => join(packageRoot, file))])}-${sources.length}`;
}

const modulesReady = () => readStamp(modulesStamp)?.lock === lockHash();
const buildReady = () => readStamp(buildStamp)?.sources === sourcesHash();

/** Whether modules and build are up to date. */
export const nodeReady = () => !isCheckout() || (modulesReady() && buildReady());

export async function prepareNode() {
  if (!isCheckout()) return;
  if (!modulesReady()) await installModules();
  if (!buildReady()) await compile();
}

async function installModules() {
  if (modulesReady()) return;
  if (lstatSync(modules, { throwIfNoEntry: false })?.isSymbolicLink()) {
    // `npm ci` would empty the folder that it points to.
    throw new SetupError(`${modules} is a link to modules of another package-lock.json`, {
      hint: "run node scripts/setup.mjs node in the checkout that it points to",
    });
  }
  const start = performance.now();
  say("installing the node modules of package-lock.json");
  // An interrupted `npm ci` must not leave the old stamp with a part of the new modules.
  rmSync(modulesStamp, { force: true });
  await run("npm ci", "npm", ["ci", "--ignore-scripts", "--no-audit", "--no-fund"], { cwd: packageRoot });
  writeStamp(modulesStamp, { lock: lockHash() });
  say(`node modules installed in ${secondsSince(start)}`);
}

async function compile() {
  const start = performance.now();
  say("building dist from src and web");
  const sources = sourcesHash();
  const compiler = join(modules, "typescript", "bin", "tsc");
  const scratch = join(packageRoot, ".hone");
  await replaceFolder(
    build,
    async (partial) => {
      const args = [compiler, "-p", "tsconfig.build.json", "--outDir", partial];
      await run("the build", process.execPath, args, { cwd: packageRoot });
      const page = [join(modules, "vite", "bin", "vite.js"), "build", "web", "--outDir", join(partial, "web")];
      await run("the build of the page", process.execPath, page, { cwd: packageRoot });
      writeStamp(join(partial, ".stamp.json"), { sources });
    },
    scratch,
  );
  say(`built in ${secondsSince(start)}`);
}
