// Words and numbers as the tables of berth have them.

export function bytes(n) {
  if (n === undefined || n === null) return "–";
  if (n < 1024) return n + " B";
  let value = n, unit = -1;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    unit++;
  }
  return value.toFixed(value >= 100 ? 0 : 1) + " " + "KMGTP"[unit] + "iB";
}

export function cpu(cpus) {
  return cpus === undefined || cpus === null ? "–" : (cpus * 100).toFixed(1) + " %";
}

// percentOf is a share; null where one of the two is not known.
export function percentOf(used, limit) {
  return used === undefined || used === null || !limit ? null : (100 * used) / limit;
}

// age is a span of milliseconds: 8s, 4m, 3h12m, 5d.
export function age(milliseconds) {
  const s = Math.max(0, Math.floor(milliseconds / 1000));
  const two = (large, unit, small, smallUnit) => large + unit + (small ? small + smallUnit : "");
  if (s < 120) return s + "s";
  if (s < 600) return two(Math.floor(s / 60), "m", s % 60, "s");
  if (s < 7200) return Math.floor(s / 60) + "m";
  if (s < 36000) return two(Math.floor(s / 3600), "h", Math.floor((s % 3600) / 60), "m");
  if (s < 172800) return Math.floor(s / 3600) + "h";
  if (s < 2 * 365 * 86400) return Math.floor(s / 86400) + "d";
  return Math.floor(s / (365 * 86400)) + "y";
}

export const milliseconds = (nanoseconds) => (nanoseconds / 1e6).toFixed(1) + " ms";

// shortID is the beginning of an ID. A digest loses its algorithm.
export const shortID = (id) => id.slice(id.indexOf(":") + 1).slice(0, 12);

export const plural = (n, one, many = one + "s") => n + " " + (n === 1 ? one : many);

const pad = (n, digits = 2) => String(n).padStart(digits, "0");

// clock is the time of day of a moment, with milliseconds.
export function clock(text) {
  const t = new Date(text);
  return isNaN(t) ? "" : `${pad(t.getHours())}:${pad(t.getMinutes())}:${pad(t.getSeconds())}.${pad(t.getMilliseconds(), 3)}`;
}

// moment is a date and time.
export function moment(text) {
  const t = new Date(text);
  return isNaN(t) ? "" : `${t.getFullYear()}-${pad(t.getMonth() + 1)}-${pad(t.getDate())} ` +
    `${pad(t.getHours())}:${pad(t.getMinutes())}:${pad(t.getSeconds())}`;
}

// kinds of states, for their colours.
const kinds = {
  running: "good", healthy: "good", started: "good", back: "good", ready: "calm", created: "calm", succeeded: "calm",
  paused: "warn", failed: "bad", unhealthy: "bad", away: "bad", "without events": "warn",
};

export const kindOf = (state) => kinds[state] || "plain";

// stateOf words the state of a container, and how it ended.
export function stateOf(container) {
  if (container.exitCode === undefined) return container.state;
  const usual = ["", "Completed", "Error", undefined].includes(container.reason);
  return `exited (${container.exitCode})` + (usual ? "" : " " + container.reason);
}

export function kindOfContainer(container) {
  if (container.exitCode === undefined) return kindOf(container.state);
  return container.exitCode === 0 ? "calm" : "bad";
}
