/** A small curve in a table. */
export function Sparkline({ values, label }: { values: readonly (number | null)[]; label: string }) {
  const known = values.flatMap((value, index) => (value === null || !Number.isFinite(value) ? [] : [{ index, value }]));
  if (known.length < 2) return <span class="muted">–</span>;
  const low = Math.min(...known.map(({ value }) => value));
  const range = Math.max(...known.map(({ value }) => value)) - low || 1;
  const points = known.map(
    ({ index, value }) => `${(index / (values.length - 1)) * 96 + 2},${22 - ((value - low) / range) * 20}`,
  );
  return (
    <svg class="sparkline" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label={label}>
      <polyline points={points.join(" ")} vector-effect="non-scaling-stroke" />
    </svg>
  );
}
