// biome-ignore-all lint/suspicious/noTemplateCurlyInString: the configuration's references are spelled like that
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { gunzipSync } from "node:zlib";
import { beforeAll, describe, expect, test } from "vitest";
import { UserError } from "../../base/errors.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { nodeAt, originText, plain } from "../tree.ts";
import { composeHydra } from "./compose.ts";
import { expandSweep } from "./expand-sweep.ts";
import { resolveTree, select } from "./resolve.ts";

describe("compose", () => {
  const folder = temporaryFolder("hydra");

  let count = 0;
  function conf(files: Record<string, string>): string {
    const root = join(folder, String(count++));
    for (const [name, text] of Object.entries(files)) {
      mkdirSync(dirname(join(root, name)), { recursive: true });
      writeFileSync(join(root, name), text);
    }
    return root;
  }

  function compose(files: Record<string, string>, ...overrides: string[]) {
    const composed = composeHydra({ searchPath: [conf(files)], configName: "config", overrides });
    return { ...composed, resolved: resolveTree(composed.tree, composed.resolvers).tree };
  }

  const values = (files: Record<string, string>, ...overrides: string[]) =>
    plain(compose(files, ...overrides).resolved);

  function complaint(act: () => unknown): string {
    try {
      act();
    } catch (error) {
      expect(error).toBeInstanceOf(UserError);
      return (error as UserError).message.replaceAll(/[^\s(]*\/\d+\/(?=[\w/]+\.yaml)/g, "");
    }
    throw new Error("no error was thrown");
  }

  const grouped = {
    "config.yaml": "defaults:\n  - db: mysql\n  - _self_\nlr: 1e-3\n",
    "db/mysql.yaml": "port: 3306\nhost: a\n",
    "db/pg.yaml": "port: 5432\n",
  };

  describe("where a value came from", () => {
    const files = { ...grouped, "config.yaml": `${grouped["config.yaml"]}url: x-\${db.port}\ncopy: \${db}\n` };
    const { tree, resolved, choices } = compose(files, "db=pg", "lr=0.5");
    const origin = (path: string) =>
      originText(nodeAt(resolved, path.split("."))!.origin).replaceAll(/\S*\/\d+\/(?=[\w/]+\.yaml)/g, "");
    test.each([
      ["lr", "command line: lr=0.5"],
      ["db.port", "db/pg.yaml:1:1"],
      ["url", "config.yaml:5:1 (x-${db.port})"],
      ["copy.port", "config.yaml:6:1 (${db}, from db/pg.yaml:1:1)"],
    ])("%s: %s", (path, expected) => expect(origin(path)).toBe(expected));
    test("reports the option of each group", () => expect([...choices]).toEqual([["db", "pg"]]));
    test("references are kept until they are resolved", () => {
      expect(plain(nodeAt(tree, ["url"])!)).toBe("x-${db.port}");
      expect(plain(select(tree, "url")!)).toBe("x-5432");
      expect(select(tree, "nothing.here")).toBeUndefined();
    });
  });

  describe("mistakes are located", () => {
    test.each([
      [["lrr=1"], "lrr=1: unknown key lrr; did you mean lr?"],
      [["db.prt=1"], "db.prt=1: unknown key db.prt; did you mean db.port"],
      [["optimizer.zeta=1"], "To add a new key, write +optimizer.zeta="],
      [["+lr=1"], "+lr=1: lr already exists; write lr=1 to change it, or ++lr=1 to add or change it"],
      [["db=pgg"], "db=pgg: there is no configuration db/pgg; did you mean pg?"],
      [["model=big"], "model=big: unknown key model"],
      [["db={port: 1}", "db.port.x=1"], "unknown key db.port.x"],
      [["lr=1,2"], "write lr=[1,2] for a list"],
      [["lr=range(1,3)"], "add --multirun (-m)"],
      [["lr=interval(0,1)"], "add --multirun (-m)"],
      [["lr"], "an override has the form key=value"],
      [["lr=(1)"], '"(" at character 1 of the value is not understood'],
      [["lr='a"], "has no match"],
      [["lr=chioce(1,2)"], "did you mean choice?"],
      [["hydra.verbose=true"], "hydra.verbose is a setting of Hydra's own machinery"],
      [["hydra/launcher=ray"], "hydra/launcher is a setting of Hydra's own machinery"],
      [["hydra.job.chdir=true"], "Hone never changes the working folder"],
      [["~nothing"], "unknown key nothing"],
      [["~lr=2"], "lr is 0.001, not 2"],
      [["lr=9007199254740993"], "beyond 2^53"],
      [["+ref=${lrr}"], "+ref=${lrr}: ref ${lrr} refers to a key that does not exist; did you mean lr?"],
      [["+ref=${oc.env:HONE_NOT_SET}"], "the environment variable HONE_NOT_SET is not set"],
      [["+ref=${oc.envv:X}"], "oc.envv is not a resolver; did you mean oc.env"],
      [["+p=${q}", "+q=${p}"], "p refers to itself: p -> q -> p"],
      [["a b=1"], "contains spaces"],
      [["lr[0]=1"], "items of a list are spelled key.0"],
    ])("%j: %s", (overrides, expected) => {
      expect(complaint(() => compose(grouped, ...overrides))).toContain(expected);
    });

    test.each([
      [
        { "config.yaml": "defaults:\n  - nothing\n" },
        "config.yaml:2:5: there is no configuration nothing (in the defaults list of config)",
      ],
      [{ "config.yaml": "defaults: x\n" }, "config.yaml:1:1: defaults must be a list"],
      [{ "config.yaml": "defaults: [_self_, _self_]\n" }, "_self_ appears twice"],
      [
        { "config.yaml": "defaults:\n  - a\na: 1\n", "a.yaml": "defaults:\n  - config\n" },
        "defaults lists include each other",
      ],
      [{ "config.yaml": "a: 1\na: 2\n" }, "config.yaml:2:1: this key appears twice"],
      [{ "config.yaml": "a: !py x\n" }, "config.yaml:1:4: tags (!...)"],
      [{ "config.yaml": "a: *b\n" }, "config.yaml:1:4: the anchor &b is not defined"],
      [{ "config.yaml": "x: {y: '${z}'}\n" }, "x.y ${z} refers to a key that does not exist"],
      [
        { "config.yaml": "a: {b: 1}\nc: x-${a}\n" },
        "config.yaml:2:1: c ${a} is a section, which cannot be part of text",
      ],
      [{ "config.yaml": "a: {b: '${a}'}\n" }, "a.b refers to a, a section that it is part of"],
      [
        { "config.yaml": "hydra: {job: {name: x}}\n" },
        "config.yaml:1:15: hydra.job.name is a setting of Hydra's own machinery",
      ],
      [{ "config.yaml": "hydra: {searchpath: x}\n" }, "config.yaml:1:9: hydra.searchpath must be a list of text"],
      [
        { "config.yaml": "defaults: [a]\n", "a.yaml": "# @package _global_\nhydra: {searchpath: []}\n" },
        "a.yaml:2:9: hydra.searchpath is allowed only in the primary configuration",
      ],
    ])("%j: %s", (files, expected) => {
      expect(complaint(() => compose(files))).toContain(expected);
    });

    test("lists all groups without an option at once", () => {
      const groups = {
        "config.yaml": "defaults:\n  - db: ???\n  - opt: ???\n  - _self_\n",
        "db/pg.yaml": "",
        "opt/adam.yaml": "",
      };
      expect(complaint(() => compose(groups))).toBe(
        "2 mistakes in the configuration:\n  config.yaml:3:5: opt must be given: opt=adam\n  config.yaml:2:5: db must be given: db=pg",
      );
    });

    test("all mistaken overrides are listed at once", () => {
      expect(complaint(() => compose(grouped, "x=1", "y=2"))).toMatch(
        /^2 mistakes in the configuration:\n {2}x=1: .*\n {2}y=2: /,
      );
    });
  });

  describe("deliberate differences from Hydra", () => {
    test("a key that holds null can be removed", () => {
      expect(values({ "config.yaml": "a: null\nb: 1\n" }, "~a")).toEqual({ b: 1 });
    });
    test("text in quotes stays text within choice()", () => {
      expect(expandSweep(["a=choice('1',2)"])).toEqual([["a='1'"], ["a=2"]]);
    });
    test("json_str() writes JSON", () => {
      expect(values({ "config.yaml": "a: 1\n" }, "a=json_str({b: [1, x]})")).toEqual({ a: '{"b":[1,"x"]}' });
    });
    test("mul refuses fractions", () => {
      expect(complaint(() => compose({ "config.yaml": "a: ${mul:2,1.5}\n" }))).toContain(
        "mul takes whole numbers, not 1.5",
      );
    });
  });

  describe("search path", () => {
    test("entries of the command line come after the given ones, and may be folders or file://", () => {
      const more = conf({ "db/lite.yaml": "port: 0\n" });
      expect(values(grouped, `hydra.searchpath=[file://${more}]`, "db=lite")).toEqual({ db: { port: 0 }, lr: 0.001 });
      expect(
        values({ ...grouped, "config.yaml": `hydra: {searchpath: ['${more}']}\n${grouped["config.yaml"]}` }, "db=lite"),
      ).toEqual({
        db: { port: 0 },
        lr: 0.001,
      });
    });

    test("names the install command when a missing Python package is searched", () => {
      const overrides = ["hydra.searchpath=[pkg://hone_no_such_package.config]"];
      expect(values(grouped, ...overrides)).toEqual({ db: { port: 3306, host: "a" }, lr: 0.001 });
      try {
        compose(grouped, ...overrides, "db=lite");
        expect.unreachable();
      } catch (error) {
        expect(error).toBeInstanceOf(UserError);
        expect((error as UserError).message).toContain("hone_no_such_package");
        expect((error as UserError).hint).toMatch(/pip install --no-deps hone_no_such_package|HONE_PYTHON/);
      }
    });
  });

  describe("sweeps", () => {
    test.each([
      [
        ["a=1,2", "b=range(1,4)"],
        ["a=1 b=1", "a=1 b=2", "a=1 b=3", "a=2 b=1", "a=2 b=2", "a=2 b=3"],
      ],
      [
        ["a=x", "b=1,2", "a=y,z"],
        ["a=y b=1", "a=y b=2", "a=z b=1", "a=z b=2"],
      ],
      [["db=glob(*, exclude=p*)"], ["db=mysql"]],
      [["a=range(0,0.3,0.1)"], ["a=0.0", "a=0.1", "a=0.2"]],
    ])("%j", (overrides, runs) => {
      expect(expandSweep(overrides, { groupOptions: () => ["mysql", "pg"] }).map((run) => run.join(" "))).toEqual(runs);
    });

    test("a shuffled sweep runs every value once", () => {
      const runs = expandSweep(["a=shuffle(1,2,3,4)"], { random: () => 0 });
      expect(runs.map(([text]) => text).sort()).toEqual(["a=1", "a=2", "a=3", "a=4"]);
      expect(runs.map(([text]) => text)).not.toEqual(["a=1", "a=2", "a=3", "a=4"]);
    });

    test.each([
      ["a=interval(0,1)", "interval() has infinitely many values"],
      ["a=range(0,1,0)", "steps of 0"],
      ["a=range(1e9)", "the limit is 10000"],
      ["db=glob(x*)", "glob() matches no option; its options are mysql, pg"],
    ])("%s: %s", (override, expected) => {
      expect(complaint(() => expandSweep([override], { groupOptions: () => ["mysql", "pg"] }))).toContain(expected);
    });
  });
});

describe("peer", () => {
  interface Case {
    overrides: string[];
    result?: unknown;
    /** The name of Hydra's error. */
    error?: string;
  }

  interface Recorded {
    trees: { files: Record<string, string>; cases: Case[] }[];
    sweeps: { overrides: string[]; runs: string[][] }[];
  }

  const file = new URL("./compose.peer.fixture.json.gz", import.meta.url);
  const { trees, sweeps } = JSON.parse(gunzipSync(readFileSync(file)).toString("utf8")) as Recorded;

  const folder = temporaryFolder("hydra");
  beforeAll(() => {
    process.env.HYDRA_PEER = "from-environment";
    return () => delete process.env.HYDRA_PEER;
  });

  /** Values that JSON cannot represent, as the recording spells them. */
  function recordable(value: unknown): unknown {
    if (typeof value === "number" && !Number.isFinite(value)) {
      return `float:${Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf"}`;
    }
    if (Array.isArray(value)) return value.map(recordable);
    if (typeof value !== "object" || value === null) return value;
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, recordable(inner)]));
  }

  test("there are at least 400 compositions, and many of them fail", () => {
    const cases = trees.flatMap((tree) => tree.cases);
    expect(cases.length).toBeGreaterThan(400);
    expect(cases.filter(({ error }) => error !== undefined).length).toBeGreaterThan(100);
    expect(cases.filter(({ error }) => error === undefined).length).toBeGreaterThan(150);
  });

  test.each(trees.map(({ files, cases }, index) => ({ index, files, cases })))(
    "tree $index",
    ({ index, files, cases }) => {
      const root = join(folder, String(index));
      for (const [name, text] of Object.entries(files)) {
        mkdirSync(dirname(join(root, name)), { recursive: true });
        writeFileSync(join(root, name), text);
      }
      for (const { overrides, result, error } of cases) {
        const compose = () => {
          const { tree, resolvers } = composeHydra({ searchPath: [root], configName: "config", overrides });
          const resolved = plain(resolveTree(tree, resolvers).tree);
          // Hydra fails when a required value is read; in Hone, the start-up check refuses it.
          if (JSON.stringify(resolved).includes('"???"')) throw new UserError("a required value is missing");
          return recordable(resolved);
        };
        if (error === undefined) expect(compose(), overrides.join(" ")).toEqual(result);
        else expect(compose, `${overrides.join(" ")}: ${error}`).toThrow(UserError);
      }
    },
  );

  test.each(sweeps)("sweep $overrides", ({ overrides, runs }) => {
    // Python spells true as True; as a value both are the same.
    expect(expandSweep(overrides)).toEqual(
      runs.map((run) => run.map((text) => text.replace(/=(True|False)$/, (spelled) => spelled.toLowerCase()))),
    );
  });
});
