/** The end-to-end tests that take longest start first, so that both cores are busy until the end. */
import { basename } from "node:path";
import { BaseSequencer, type TestSpecification } from "vitest/node";

const longest = [
  ...[
    "verl",
    "started-server",
    "package",
    "sdk",
    "train",
    "page",
    "conformance",
    "harbor",
    "tinker",
    "code-tests",
    "clients",
  ],
  ...[
    "examples",
    "backends",
    "sandbox",
    "verl-driver",
    "multirun",
    "reward-models",
    "escapes",
    "two-servers",
    "sharded",
  ],
];

export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const place = ({ moduleId }: TestSpecification) => {
      const index = longest.indexOf(basename(moduleId, ".e2e.ts"));
      return index < 0 ? longest.length : index;
    };
    return (await super.sort(files)).sort((a, b) => place(a) - place(b));
  }
}
