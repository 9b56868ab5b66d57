/** Builds the page of `hone view` into dist/web: one script and one style sheet, which an exported report contains whole. */
import { defineConfig } from "vite";

export default defineConfig({
  root: import.meta.dirname,
  base: "/",
  build: {
    outDir: "../dist/web",
    emptyOutDir: true,
    // The style sheet uses light-dark().
    target: ["chrome123", "firefox120", "safari17.5"],
    modulePreload: false,
    license: { fileName: "licenses.md" },
    rolldownOptions: {
      output: { entryFileNames: "page.js", assetFileNames: "page[extname]", codeSplitting: false },
    },
  },
  // `npx vite web` serves the sources, with the data of a viewer on its default port.
  server: { proxy: { "/api": process.env.HONE_VIEW ?? "http://127.0.0.1:7700" } },
});
