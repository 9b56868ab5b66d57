/** Numbers as text for people. Numbers of the same magnitude have the same length. */

/** Three decimals, fewer for large numbers, an exponent for very small and very large ones: 0.342, 12346, 1.2e-5. */
export function formatNumber(value: number): string {
  const size = Math.abs(value);
  if (!Number.isFinite(value)) return String(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(1).replace("e+", "e");
  return size >= 1000 ? value.toFixed(0) : size >= 100 ? value.toFixed(1) : value.toFixed(3);
}

/** `1e-3`, `2.5e-5`. */
export function formatRate(value: number): string {
  return value === 0 ? "0" : value.toExponential(1).replace(".0e", "e").replace("e+", "e");
}

/** `1,234`. */
export function formatCount(value: number): string {
  return Math.round(value)
    .toString()
    .replace(/\B(?=(\d{3})+$)/g, ",");
}

/** `+0.09`, `-0.10`. */
export function formatChange(value: number): string {
  const text = value.toFixed(2);
  return text.startsWith("-") && Number(text) !== 0 ? text : `+${text.replace("-", "")}`;
}

/** Seconds as `12.3 s`, `2 min 05 s`, `3 h 20 min`, `2 d 4 h`. */
export function formatSeconds(seconds: number): string {
  if (!Number.isFinite(seconds)) return "?";
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const two = (value: number) => String(value).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
  const hours = Math.round(minutes / 60);
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}
