/** Counters and gauges in Prometheus' text format. */

export interface Metrics {
  add(name: string, labels: Record<string, string>, value?: number): void;
  /** A value that is computed when the metrics are read. */
  gauge(name: string, help: string, read: () => { labels?: Record<string, string>; value: number }[]): void;
  text(): string;
}

/** All counters, with what they count. */
const counters = {
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
} as const;

const labelText = (labels: Record<string, string>): string => {
  const pairs = Object.entries(labels).map(
    ([key, value]) => `${key}="${value.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n")}"`,
  );
  return pairs.length > 0 ? `{${pairs.join(",")}}` : "";
};

export function createMetrics(): Metrics {
  const values = new Map<string, Map<string, number>>(Object.keys(counters).map((name) => [name, new Map()]));
  const gauges: { name: string; help: string; read: Parameters<Metrics["gauge"]>[2] }[] = [];
  const block = (name: string, help: string, type: string, lines: string[]) =>
    lines.length === 0 ? [] : [`# HELP ${name} ${help}`, `# TYPE ${name} ${type}`, ...lines];
  return {
    add(name, labels, value = 1) {
      const series = values.get(name);
      if (!series) throw new Error(`there is no counter ${name}`);
      const key = labelText(labels);
      series.set(key, (series.get(key) ?? 0) + value);
    },
    gauge: (name, help, read) => void gauges.push({ name, help, read }),
    text() {
      const lines = Object.entries(counters).flatMap(([name, help]) =>
        block(
          name,
          help,
          "counter",
          [...values.get(name)!].map(([labels, value]) => `${name}${labels} ${value}`),
        ),
      );
      const read = gauges.flatMap(({ name, help, read }) =>
        block(
          name,
          help,
          "gauge",
          read().map(({ labels = {}, value }) => `${name}${labelText(labels)} ${value}`),
        ),
      );
      return `${[...lines, ...read].join("\n")}\n`;
    },
  };
}
