/** Gives the modules of the API reference the names that users import, such as `hone-rl/testing`. */
import { Converter, ReflectionKind } from "typedoc";
import { entryPoints } from "./typedoc.config.mjs";

/** @param {import("typedoc").Application} app */
export function load(app) {
  app.converter.on(Converter.EVENT_RESOLVE_BEGIN, ({ project }) => {
    for (const module of project.getReflectionsByKind(ReflectionKind.Module)) {
      const entry = entryPoints.find(
        ({ file }) => file === `src/${module.name}.ts` || file === `src/${module.name}/index.ts`,
      );
      if (entry) module.name = entry.name === "." ? "hone-rl" : entry.name.replace("./", "hone-rl/");
    }
  });
}
