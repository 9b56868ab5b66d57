/** The end-to-end tests that take longest start first, so that both cores are busy until the end. */
import { basename } from "node:path";
import { BaseSequencer, type TestSpecification } from "vitest/node";

const longest = [
  ...["sdk", "verl", "verl-driver", "train", "own-server", "sharded", "reward-models", "against-transformers"],
  ...["two-servers", "other-models", "losses-by-autograd", "conformance", "tinker", "examples", "harbor", "container"],
  ...["backends", "against-trl", "package"],
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
