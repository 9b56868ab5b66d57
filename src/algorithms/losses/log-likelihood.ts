/** The plain policy gradient (REINFORCE, GPG of arXiv 2504.02546); with weights as advantages it is cross-entropy. */
import { defineLoss, type EngineLoss, eachToken, emptyValues } from "./definition.ts";

/** `-lp A` */
export const gpg = defineLoss({
  aliases: ["reinforce"],
  formula: "`-lp A`",
  source: "2504.02546",
  ratio: "none",
  constants: {},
  evaluate(tokens) {
    const values = emptyValues(tokens);
    eachToken(tokens, (t, logprob, old, advantage) => {
      values.losses[t] = -logprob * advantage;
      values.slopes[t] = -advantage;
      values.kl += old - logprob;
    });
    return values;
  },
  slopeAtOne: () => 1,
});

/** Tinker's name of the same loss. */
export const crossEntropy: typeof gpg = { ...gpg, aliases: [], served: {} };

/** On engines, where advantages are the weights of tokens. */
export const weightedLikelihood: EngineLoss = {
  tinker: { name: "cross_entropy", config: {} },
  verl: { name: "gpg", settings: {} },
};
