/** Learners that an engine does not declare are refused before anything is created. */
import assert from "node:assert/strict";
import { type ConformanceCheck, lora } from "./tools.ts";

export const specChecks: ConformanceCheck[] = [
  {
    name: "another model than the engine's is refused by engines that hold one",
    needs: ({ otherModels }) => !otherModels,
    async check(engine) {
      await assert.rejects(engine.createLearner({ adapter: lora(), model: "another" }), /cannot load "another"/);
    },
  },
  {
    name: "reward models can be loaded if the engine has scores",
    async check(engine) {
      assert.equal(engine.createScorer !== undefined, engine.capabilities.outputs.includes("scores"));
    },
  },
  {
    name: "a value head is refused by engines without values",
    needs: ({ outputs }) => !outputs.includes("values"),
    async check(engine) {
      await assert.rejects(engine.createLearner({ adapter: lora(), head: "value" }), /value head/);
    },
  },
];
