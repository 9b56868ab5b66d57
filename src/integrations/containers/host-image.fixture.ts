/** For tests: an image made of this machine's own programs, because no registry of images may be reachable. */
import { execFileSync } from "node:child_process";
import {
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { type Engine, findEngine, noAnswer } from "./engine.ts";

const programs = "bash cat chmod cp env head id kill ls mkdir mv ps rm setsid sleep tar touch".split(" ");

/**
 * podman in a container, or without cgroups, needs these settings; they are harmless elsewhere.
 * @returns the engine, or why the tests that need one do not run
 */
export async function testEngine(): Promise<Engine | string> {
  if (process.platform !== "linux") return "containers are tested on Linux";
  const folder = temporaryFolder("containers");
  const settings =
    '[containers]\nnetns="host"\ndefault_ulimits=["nofile=1024:1024","nproc=4096:4096"]\n[engine]\nruntime="runc"\n';
  writeFileSync(join(folder, "containers.conf"), settings);
  process.env.CONTAINERS_CONF ??= join(folder, "containers.conf");
  return findEngine().catch((error: Error) => {
    // The tests of a busy machine fail; only those of one without an engine are skipped.
    if (error.message.includes(noAnswer)) throw error;
    return error.message;
  });
}

/**
 * @param languages also Node and Debian's Python, of which only what programs import without packages is copied
 * @returns the image's name
 */
export async function hostImage(engine: Engine, languages: "" | "-languages" = ""): Promise<string> {
  const name = `${engine.name === "podman" ? "localhost/" : ""}hone-test-host${languages}:2`;
  if ((await engine.run(["image", "inspect", name])).exitCode === 0) return name;
  const root = mkdtempSync(join(tmpdir(), "hone-rootfs-"));
  try {
    for (const folder of ["tmp", "etc", "proc", "sys", "dev", "root", "usr/bin", "usr/local/bin"]) {
      mkdirSync(join(root, folder), { recursive: true });
    }
    symlinkSync("usr/bin", join(root, "bin"));
    const files = programs.map((program) => execFileSync("which", [program], { encoding: "utf8" }).trim());
    for (const [index, file] of files.entries()) copyFileSync(file, join(root, "usr/bin", programs[index] ?? ""));
    symlinkSync("bash", join(root, "usr/bin/sh"));
    if (languages) files.push(...copyLanguages(root));
    const libraries = execFileSync("ldd", files, { encoding: "utf8" }).matchAll(/(\/[^\s:]+\.so[^\s:]*)/g);
    for (const [, library = ""] of libraries) {
      mkdirSync(join(root, dirname(library)), { recursive: true });
      copyFileSync(library, join(root, library));
    }
    writeFileSync(join(root, "etc/passwd"), "root:x:0:0:root:/root:/bin/bash\n");
    writeFileSync(join(root, "etc/group"), "root:x:0:\n");
    const tar = join(root, "..", `${root.split("/").at(-1)}.tar`);
    execFileSync("tar", ["-C", root, "-cf", tar, "."]);
    const { exitCode, stderr } = await engine.run(["import", "-", name], { input: readFileSync(tar) });
    rmSync(tar);
    if (exitCode !== 0) throw new Error(stderr);
    return name;
  } finally {
    rmSync(root, { recursive: true, force: true });
  }
}

/** @returns the programs whose libraries they need */
function copyLanguages(root: string): string[] {
  const show = "import sys, sysconfig; print(sys.executable, sysconfig.get_path('stdlib'))";
  const [python = "", library = ""] = execFileSync("/usr/bin/python3", ["-I", "-c", show], { encoding: "utf8" })
    .trim()
    .split(" ");
  copyFileSync(python, join(root, "usr/bin/python3"));
  copyFileSync(process.execPath, join(root, "usr/bin/node"));
  const needless = /\/(test|tests|idlelib|tkinter|ensurepip|dist-packages|site-packages|__pycache__|config-[^/]*)$/;
  cpSync(library, join(root, library), { recursive: true, filter: (path) => !needless.test(path) });
  // What compiled packages link, although the C library has its content.
  const linked =
    execFileSync("ldd", [process.execPath], { encoding: "utf8" }).match(/\S+(?=\/libc\.so)/)?.[0] ?? "/lib";
  mkdirSync(join(root, linked), { recursive: true });
  for (const name of ["librt.so.1", "libutil.so.1"].filter((name) => existsSync(join(linked, name)))) {
    copyFileSync(join(linked, name), join(root, linked, name));
  }
  const modules = readdirSync(join(library, "lib-dynload")).map((name) => join(library, "lib-dynload", name));
  return [python, process.execPath, ...modules];
}
