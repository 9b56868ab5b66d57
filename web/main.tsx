/** Starts the page. */
import "uplot/dist/uPlot.min.css";
import "./styles.css";
import { render } from "preact";
import { App } from "./app.tsx";
import { followLinks } from "./state/address.ts";
import { listen } from "./state/live.ts";

followLinks();
listen();
render(<App />, document.getElementById("page")!);
