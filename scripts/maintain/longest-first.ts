/** The end-to-end tests that take longest start first, so that both cores are busy until the end. */
import { BaseSequencer, type TestSpecification } from "vitest/node";

const longest = [
  ...[
    "backends/verl/engine",
    "servers/started-server",
    "src/package",
    "apps/server/sdk",
    "apps/cli/train",
    "view/page",
  ],
  ...["local/conformance", "harbor/harbor", "apps/cli/tinker", "rewards/code", "tracking/sidecar-logger"],
  ...["apps/cli/examples", "supervised/sft.backends", "rewards/sandbox/sandbox", "base/python.verl-driver"],
  ...[
    "apps/cli/train.multirun",
    "trainer/reward-models",
    "sandbox/sandbox.escapes",
    "servers/group",
    "local/engine.sharded",
  ],
];

export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const place = ({ moduleId }: TestSpecification) => {
      const index = longest.findIndex((name) => moduleId.endsWith(`${name}.e2e.ts`));
      return index < 0 ? longest.length : index;
    };
    return (await super.sort(files)).sort((a, b) => place(a) - place(b));
  }
}
