import { expect, test } from "vitest";
import { readDiff } from "./changed-files.ts";

test("files, without their folders, caches and the folders that are not the agent's", () => {
  const diff = `C /home
C /home/agent
A /home/agent/.cache
A /home/agent/.cache/pip
C /app
A /app/a b.txt
C /app/main.py
A /app/__pycache__/main.cpython-313.pyc
D /etc/motd
C /etc
A /tests/test.sh
A /empty
C /run
C /proc
`;
  expect(readDiff(diff, ["/tests"])).toEqual([
    { path: "/app/a b.txt", change: "added" },
    { path: "/app/main.py", change: "changed" },
    { path: "/empty", change: "added" },
    { path: "/etc/motd", change: "deleted" },
  ]);
  expect(readDiff("C /etc\nC /app", [])).toEqual([{ path: "/app", change: "changed" }]);
  expect(readDiff("Error: no such container", [])).toEqual([]);
});
