// The columns that several tables have.

import { share } from "../dom.js";
import { age, bytes, cpu, percentOf } from "../format.js";

// usageColumns are what a row uses: usage(row) is an object of the server, or undefined.
export function usageColumns(usage) {
  const column = (title, value, word, limit, wide) => ({
    title, number: true, wide,
    value: (row) => value(usage(row) || {}),
    text: (row) => {
      const u = usage(row) || {};
      const percent = limit ? percentOf(value(u), limit(u)) : null;
      return word(value(u)) + (percent === null ? "" : " " + percent.toFixed(0));
    },
    show: (row) => {
      const u = usage(row) || {};
      return share(word(value(u)), limit ? percentOf(value(u), limit(u)) : null);
    },
  });
  return [
    column("CPU", (u) => u.cpu, cpu, (u) => u.cpuLimit),
    column("Memory", (u) => u.memory, bytes, (u) => u.memoryLimit),
    column("Disk", (u) => u.disk, bytes, null, 2),
  ];
}

// networkColumns are what a pod has received and sent.
export const networkColumns = (usage) => [["Net in", "received"], ["Net out", "sent"]].map(([title, name]) => ({
  title, number: true, wide: 3, value: (row) => usage(row)?.[name], text: (row) => bytes(usage(row)?.[name]),
}));

// ageColumn is how long ago something was. The youngest is the least.
export const ageColumn = (at, now, wide) => ({
  title: "Age", number: true, wide,
  value: (row) => (at(row) ? now() - Date.parse(at(row)) : undefined),
  text: (row) => (at(row) ? age(now() - Date.parse(at(row))) : "–"),
});
