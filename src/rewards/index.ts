export { type OffThreadOptions, offThread } from "../base/off-thread.ts";
export { type CodeBlock, type CodeTest, type CodeTestOptions, codeBlock, codeTests, type Tolerance } from "./code.ts";
export { combine, type Grade, type RewardPart } from "./grade.ts";
export { type MathAnswerOptions, mathAnswer } from "./math/answer.ts";
export { mathEquivalent } from "./math/equivalent.ts";
export { type JudgeOptions, judge, type RemoteRewardOptions, remoteReward } from "./remote.ts";
export * from "./sandbox/sandbox.ts";
export {
  countdown,
  type ExactMatchOptions,
  exactMatch,
  firstInteger,
  gsm8kAnswer,
  hasTags,
  integersInOrder,
  matchesFormat,
  matchesSchema,
  multipleChoice,
  tokenF1,
} from "./text.ts";
