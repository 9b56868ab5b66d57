import { describe, expect, test } from "vitest";
import { convertedFiles, splitFiles } from "./hub-files.ts";

describe("which files make up a split", () => {
  const choose = (files: string[], split: string, config?: string, text = "") =>
    splitFiles("d", files, text, { config, split });

  test.each([
    [
      ["data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"],
      "test",
      ["data/test-00000-of-00001.parquet"],
    ],
    [
      ["data/train_sft-00000-of-00001-ab12.parquet", "data/test_sft-00000-of-00001.parquet"],
      "train_sft",
      ["data/train_sft-00000-of-00001-ab12.parquet"],
    ],
    [["b.jsonl", "a.jsonl", "c.csv"], "train", ["a.jsonl", "b.jsonl"]],
    [["dev/x.jsonl", "train/x.jsonl"], "validation", ["dev/x.jsonl"]],
    [["constrained.jsonl", "my-eval.jsonl"], "test", ["my-eval.jsonl"]],
    [["a.txt"], "train", []],
  ])("by name: %j, %s", (files, split, expected) => {
    expect(choose(files, split)).toEqual(expected);
  });

  test("by folder if a configuration is named", () => {
    const files = ["en/train.jsonl", "fr/train.jsonl"];
    expect(choose(files, "train", "fr")).toEqual(["fr/train.jsonl"]);
    expect(() => choose(files, "train", "de")).toThrow('no configuration "de"');
  });

  test.each([
    ["a/*.jsonl", ["a/x.jsonl"]],
    ["**/*.jsonl", ["a/b/y.jsonl", "a/x.jsonl", "z.jsonl"]],
    ["a/**", ["a/b/y.jsonl", "a/x.jsonl"]],
    ["a", ["a/b/y.jsonl", "a/x.jsonl"]],
    ["{z,a/x}.jsonl", ["a/x.jsonl", "z.jsonl"]],
    ["[yz].jsonl", ["z.jsonl"]],
    ["[!y].jsonl", ["z.jsonl"]],
    ["[z-a].jsonl", []],
    ["?.jsonl", ["z.jsonl"]],
    ["./z.jsonl", ["z.jsonl"]],
    ["z+jsonl", []],
  ])("the card's pattern %s", (pattern, expected) => {
    const text = `---\nconfigs:\n- config_name: only\n  data_files:\n  - split: train\n    path: ["${pattern}"]\n---\n`;
    expect(choose(["a/x.jsonl", "a/b/y.jsonl", "z.jsonl"], "train", undefined, text)).toEqual(expected);
  });

  test.each([
    [
      "the default",
      "configs:\n- {config_name: a, data_files: a.jsonl}\n- {config_name: b, default: true, data_files: b.jsonl}",
      ["b.jsonl"],
    ],
    ["a list of files", "configs:\n- {config_name: a, data_files: [a.jsonl, b.jsonl]}", ["a.jsonl", "b.jsonl"]],
    ["unsupported formats", "configs:\n- {config_name: a, data_files: c.csv}", []],
    ["broken YAML", "configs: [", ["a.jsonl", "b.jsonl"]],
    ["odd YAML", "configs: [null, 3, {data_files: 7}]", ["a.jsonl", "b.jsonl"]],
  ])("the card's configs: %s", (_, yaml, expected) => {
    expect(choose(["a.jsonl", "b.jsonl", "c.csv"], "train", undefined, `---\n${yaml}\n---\n`)).toEqual(expected);
  });

  test("the converted branch", () => {
    const files = ["en/train/0001.parquet", "en/train/0000.parquet", "en/test/0000.parquet", "fr/train/0000.parquet"];
    expect(convertedFiles("d", files, { config: "en", split: "train" })).toEqual([
      "en/train/0000.parquet",
      "en/train/0001.parquet",
    ]);
    expect(() => convertedFiles("d", files, { config: undefined, split: "train" })).toThrow("several configurations");
    expect(() => convertedFiles("d", files, { config: "fr", split: "test" })).toThrow('no split "test"');
  });
});
