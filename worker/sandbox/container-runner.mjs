// Runs one program in a container, for an image with Node and without Python: container_runner.py, which explains it, in JavaScript.
import { spawn } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync, writeSync } from "node:fs";
import { constants } from "node:os";
import { dirname } from "node:path";

function write(bytes) {
  for (let at = 0; at < bytes.length; ) {
    try {
      at += writeSync(1, bytes, at);
    } catch (error) {
      if (error.code !== "EAGAIN") throw error;
    }
  }
}

function send(kind, data = Buffer.alloc(0)) {
  const head = Buffer.alloc(5);
  head.write(kind);
  head.writeUInt32BE(data.length, 1);
  write(Buffer.concat([head, data]));
}

function first(...paths) {
  for (const path of paths) {
    try {
      return readFileSync(path, "utf8");
    } catch {
      // Another version of cgroups.
    }
  }
  return "";
}

function memory() {
  const events = first("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control");
  const peak = first("/sys/fs/cgroup/memory.peak", "/sys/fs/cgroup/memory/memory.max_usage_in_bytes").trim();
  return { ranOut: /^oom_kill [1-9]/m.test(events), peak: Number(peak) };
}

function start(launch, rest) {
  for (const [name, text] of Object.entries(launch.files)) {
    mkdirSync(dirname(name), { recursive: true });
    writeFileSync(name, text);
  }
  const { cpuSeconds, fileBytes, addressSpace, command, channel } = launch;
  const space = addressSpace === null ? "" : `ulimit -v ${Math.ceil(addressSpace / 1024)};`;
  // Blocks of 512 bytes. Without memory the kernel ends the program, not this process.
  const limits = `ulimit -t ${cpuSeconds}; ulimit -f ${Math.ceil(fileBytes / 512)}; ${space} echo 1000 2>/dev/null >/proc/self/oom_score_adj;`;
  const child = spawn("sh", ["-c", `${limits} exec "$@"`, "sh", ...command], {
    stdio: ["pipe", "pipe", "pipe", "ignore", channel ? "pipe" : "ignore"],
    detached: true,
  });
  send("r");
  const streams = [
    [child.stdout, "o"],
    [child.stderr, "e"],
  ];
  if (channel) {
    streams.push([child.stdio[4], "c"]);
    child.stdio[4].on("error", () => {});
    child.stdio[4].write(rest);
    process.stdin.pipe(child.stdio[4]);
  }
  for (const [stream, kind] of streams) stream.on("data", (data) => send(kind, data));
  child.stdin.on("error", () => {});
  child.stdin.end(launch.stdin);
  let code = 0;
  const finish = () => {
    send("x", Buffer.from(JSON.stringify({ code, ...memory() })));
    process.exit(0);
  };
  child.once("exit", (exitCode, signal) => {
    code = exitCode ?? -constants.signals[signal];
    // Another process may have its output open.
    setTimeout(finish, 1000);
  });
  child.once("close", finish);
}

let head = Buffer.alloc(0);
process.stdin.on("data", function read(data) {
  head = Buffer.concat([head, data]);
  const end = head.indexOf("\n");
  if (end < 0) return;
  process.stdin.off("data", read);
  process.stdin.pause();
  start(JSON.parse(head.subarray(0, end).toString()), head.subarray(end + 1));
});
