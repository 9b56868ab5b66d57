/** An engine whose training steps take turns with another's, each timed while it has its turn. */
import type { Engine, Policy, Sampler } from "../../src/backends/engine.ts";
import type { Turns } from "./turns.ts";

/** Seconds of a step and of its parts; the rest is the trainer's own time. */
export interface StepTime {
  step: number;
  sampling: number;
  training: number;
  publishing: number;
  sampledTokens: number;
  trainedTokens: number;
}

/** A step ends when its weights are published; the loop's work after that counts for the next step. */
export function timedEngine(engine: Engine, turns: Turns, side: number): { engine: Engine; steps: StepTime[] } {
  const steps: StepTime[] = [];
  const nothing = () => ({ sampling: 0, training: 0, publishing: 0, sampledTokens: 0, trainedTokens: 0 });
  let begin: number | undefined;
  let parts = nothing();
  const seconds = (since: number) => (performance.now() - since) / 1000;

  function timed({ sampler, learner }: Policy): Policy {
    let publishingFrom = 0;
    const training = async <T>(job: () => Promise<T>): Promise<T> => {
      const from = performance.now();
      const result = await job();
      parts.training += seconds(from);
      return result;
    };
    const counted = <T extends { outputs: { logprobs: Float32Array } }>(result: T): T => {
      parts.trainedTokens += result.outputs.logprobs.length;
      return result;
    };
    const { trainStep } = learner;
    return {
      sampler: Object.assign(Object.create(sampler) as Sampler, {
        async *sample(...args) {
          if (begin === undefined) {
            await turns.take(side);
            begin = performance.now();
          }
          const from = performance.now();
          for await (const sample of sampler.sample(...args)) {
            parts.sampledTokens += sample.tokens.length;
            yield sample;
          }
          parts.sampling += seconds(from);
        },
        async load(published) {
          await sampler.load(published);
          parts.publishing += seconds(publishingFrom);
          steps.push({ step: seconds(begin!), ...parts });
          turns.pass(side);
          await turns.take(side);
          parts = nothing();
          begin = performance.now();
        },
      } satisfies Partial<Sampler>),
      learner: {
        ...learner,
        forwardBackward: (...args) => training(async () => counted(await learner.forwardBackward(...args))),
        optimStep: (adam) => training(() => learner.optimStep(adam)),
        ...(trainStep && {
          trainStep: (...args) =>
            training(async () => {
              const both = await trainStep(...args);
              counted(both.result);
              return both;
            }),
        }),
        publish() {
          publishingFrom = performance.now();
          return learner.publish();
        },
      },
    };
  }
  return { steps, engine: { ...engine, createPolicy: async (spec) => timed(await engine.createPolicy(spec)) } };
}
