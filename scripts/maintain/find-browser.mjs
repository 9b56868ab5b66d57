/**
 * Finds a Chromium for tests of the page: CHROMIUM_PATH, one that is installed, or else the one inside an npm package,
 * which is fetched only then, so a machine needs nothing but Node and the registry.
 */
import { createHash } from "node:crypto";
import { accessSync, constants, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { delimiter, join } from "node:path";
import { brotliDecompressSync } from "node:zlib";
import { makeHome } from "../setup/home.mjs";
import { withLock } from "../setup/lock.mjs";
import { SetupError, say } from "../setup/report.mjs";
import { run } from "../setup/run.mjs";
import { replaceFolder } from "../setup/stamp.mjs";

/** The newest that runs on the oldest supported Node. */
const packaged = {
  name: "@sparticuz/chromium",
  version: "147.0.0",
  integrity: "sha512-4ZKeAQQa8up2mt675qSitztLdbQrlf8BKdC5naeap+5Mv1OV1OlJdPoU+EJC/p5sQUJUQmN4r+q5+EhaaOUHpQ==",
};
const commands = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/** @param {string} file */
function isExecutable(file) {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

/** @returns {string | undefined} */
function installedBrowser() {
  const { CHROMIUM_PATH, PATH = "" } = process.env;
  if (CHROMIUM_PATH) {
    if (isExecutable(CHROMIUM_PATH)) return CHROMIUM_PATH;
    throw new SetupError(`CHROMIUM_PATH is ${CHROMIUM_PATH}, which is not a program`, { exitCode: 2 });
  }
  return PATH.split(delimiter)
    .flatMap((folder) => commands.map((command) => join(folder, command)))
    .find(isExecutable);
}

/** @returns {Promise<{executablePath: string, args: string[], env: Record<string, string>}>} what starts it */
export async function findBrowser(home = makeHome()) {
  // Chromium's own sandbox does not start as root or in most containers; it opens only pages of this machine.
  const args = ["--no-sandbox", "--disable-gpu"];
  // Without it, the language is "en-US@posix", which Intl refuses.
  const env = { LANG: "en_US.UTF-8" };
  const installed = installedBrowser();
  if (installed !== undefined) return { executablePath: installed, args, env };
  const { executablePath, libraries, fonts } = await packagedBrowser(home);
  return { executablePath, args, env: { ...env, LD_LIBRARY_PATH: libraries, FONTCONFIG_PATH: fonts } };
}

/** @param {string} home */
async function packagedBrowser(home) {
  if (process.platform !== "linux" || process.arch !== "x64") {
    throw new SetupError("no Chromium was found", { hint: "Install Chrome, or set CHROMIUM_PATH.", exitCode: 2 });
  }
  const folder = join(home, `chromium-${packaged.version}`);
  if (!existsSync(folder)) {
    await withLock(join(home, "setup.lock"), async () => {
      if (!existsSync(folder)) await replaceFolder(folder, unpack);
    });
  }
  const fonts = join(folder, "fonts");
  return { executablePath: join(folder, "chromium"), libraries: join(folder, "al2023", "lib"), fonts };
}

/** @param {string} partial */
async function unpack(partial) {
  say(`fetching ${packaged.name} from the npm registry, since no Chromium was found (CHROMIUM_PATH names one)`);
  mkdirSync(partial, { recursive: true });
  const wanted = `${packaged.name}@${packaged.version}`;
  const printed = await run("npm pack", "npm", ["pack", wanted, "--json", "--loglevel=error"], { cwd: partial });
  const archive = join(partial, JSON.parse(printed.slice(printed.indexOf("[")))[0].filename);
  const integrity = `sha512-${createHash("sha512").update(readFileSync(archive)).digest("base64")}`;
  if (integrity !== packaged.integrity) {
    throw new SetupError(`${wanted} is not the expected file`, { hint: "Use another registry, or set CHROMIUM_PATH." });
  }
  await run("tar", "tar", ["-xzf", archive], { cwd: partial });
  const inflate = (/** @type {string} */ name) =>
    brotliDecompressSync(readFileSync(join(partial, "package", "bin", `${name}.br`)));
  writeFileSync(join(partial, "chromium"), inflate("chromium"), { mode: 0o755 });
  for (const name of ["al2023", "fonts"]) {
    writeFileSync(join(partial, `${name}.tar`), inflate(`${name}.tar`));
    mkdirSync(join(partial, name));
    await run("tar", "tar", ["-xf", join(partial, `${name}.tar`), "-C", join(partial, name)]);
    rmSync(join(partial, `${name}.tar`));
  }
  rmSync(archive);
  rmSync(join(partial, "package", "bin"), { recursive: true });
  // The package's own file names folders that exist only where it is usually deployed.
  writeFileSync(
    join(partial, "fonts", "fonts.conf"),
    '<fontconfig><dir prefix="relative">fonts</dir><cachedir prefix="xdg">fontconfig</cachedir></fontconfig>\n',
  );
}
