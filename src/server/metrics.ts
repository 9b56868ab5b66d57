/** Counters and gauges in Prometheus' text format. */

/** All counters, with what they count. */
const counters: Readonly<Record<string, string>> = {
  hone_http_requests_total: "HTTP requests answered, by route and status.",
  hone_operations_total: "Operations that ended, by kind and outcome.",
  hone_operation_seconds_total: "Seconds from the acceptance of an operation to its end, by kind.",
  hone_trained_tokens_total: "Input tokens of forward and forward_backward.",
  hone_sampled_tokens_total: "Tokens sampled.",
  hone_prompt_tokens_total: "Tokens of prompts.",
  hone_refused_total: "Requests answered 429 because a queue was full, by queue.",
  hone_skipped_sequence_ids_total: "Sequence ids that never arrived.",
  hone_evicted_models_total: "Unused models moved to disk.",
  hone_engine_deaths_total: "Engines that died, by model.",
};

type Labels = Record<string, string>;

const escaped = (value: string) => value.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n");

function labelText(labels: Labels): string {
  const pairs = Object.entries(labels).map(([key, value]) => `${key}="${escaped(value)}"`);
  return pairs.length > 0 ? `{${pairs.join(",")}}` : "";
}

export type Metrics = ReturnType<typeof createMetrics>;

export function createMetrics() {
  const values = new Map(Object.keys(counters).map((name) => [name, new Map<string, number>()]));
  const gauges: { name: string; help: string; read: () => { labels?: Labels; value: number }[] }[] = [];

  function block(name: string, help: string, type: string, series: readonly (readonly [string, number])[]): string {
    const lines = series.map(([labels, value]) => `${name}${labels} ${value}\n`);
    return lines.length === 0 ? "" : `# HELP ${name} ${help}\n# TYPE ${name} ${type}\n${lines.join("")}`;
  }

  return {
    add(name: string, labels: Labels, value = 1): void {
      const series = values.get(name);
      if (!series) throw new Error(`there is no counter ${name}`);
      const key = labelText(labels);
      series.set(key, (series.get(key) ?? 0) + value);
    },
    /** A value that is computed when the metrics are read. */
    gauge: (name: string, help: string, read: () => { labels?: Labels; value: number }[]) =>
      void gauges.push({ name, help, read }),
    text: () =>
      [
        ...[...values].map(([name, series]) => block(name, counters[name] ?? "", "counter", [...series])),
        ...gauges.map(({ name, help, read }) =>
          block(
            name,
            help,
            "gauge",
            read().map(({ labels = {}, value }) => [labelText(labels), value]),
          ),
        ),
      ].join(""),
  };
}
