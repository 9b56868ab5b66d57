/**
 * A Vitest reporter: after everything else, each failure in a few lines, so that the end of a long log says what failed.
 */
const LINES = 6;

/** @param {readonly { message: string }[] | undefined} errors */
const text = (errors) =>
  (errors ?? []).map(({ message }) => message.split("\n").slice(0, LINES).join("\n    ")).join("\n    ");

export default class Failures {
  /**
   * @param {readonly import("vitest/node").TestModule[]} modules
   * @param {readonly import("vitest/node").SerializedError[]} unhandled
   */
  onTestRunEnd(modules, unhandled) {
    const failures = modules.flatMap((module) => [
      ...[module, ...module.children.allSuites()]
        .filter((one) => one.errors().length > 0)
        .map((one) => `${module.relativeModuleId}: ${text(one.errors())}`),
      ...[...module.children.allTests("failed")].map(
        (one) => `${module.relativeModuleId} > ${one.fullName}: ${text(one.result().errors)}`,
      ),
    ]);
    for (const failure of [...failures, ...unhandled.map((error) => `outside a test: ${text([error])}`)])
      console.log(`FAILED ${failure}`);
  }
}
