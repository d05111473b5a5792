// All pods, and all containers.

import { badge, el, link, setText } from "../dom.js";
import { bytes, cpu, kindOf, kindOfContainer, plural, stateOf } from "../format.js";
import { Table, filterBar } from "../table.js";
import { ageColumn, networkColumns, usageColumns } from "./columns.js";

// restarts are those of a pod: the attempts of its containers after the first of each.
function restarts(containers) {
  const latest = new Map();
  for (const c of containers) latest.set(c.name, Math.max(latest.get(c.name) || 0, c.attempt));
  return [...latest.values()].reduce((sum, n) => sum + n, 0);
}

// byPod groups containers by the ID of their pod.
export function byPod(containers) {
  const groups = new Map();
  for (const c of containers) {
    if (!groups.has(c.podID)) groups.set(c.podID, []);
    groups.get(c.podID).push(c);
  }
  return groups;
}

// summary says how many things are in which state, and what all use.
function summary(list, states, usage) {
  const counts = new Map();
  for (const state of states) counts.set(state, (counts.get(state) || 0) + 1);
  const sum = (name) => list.reduce((all, row) => all + (usage[row.id]?.[name] || 0), 0);
  return [...counts].sort(([a], [b]) => (a < b ? -1 : 1)).map(([state, n]) => n + " " + state)
    .concat(list.length ? ["CPU " + cpu(sum("cpu")), "memory " + bytes(sum("memory"))] : []).join(" · ");
}

export function podsView() {
  let now = Date.now, usage = {}, groups = new Map();
  const own = (pod) => groups.get(pod.id) || [];
  const images = (pod) => [...new Set(own(pod).map((c) => c.image))];
  const table = new Table({
    caption: "Pods", key: (pod) => pod.id, empty: "There are no pods.",
    columns: [
      { title: "Pod", text: (p) => p.name + "\n" + p.namespace, value: (p) => p.name, class: "name",
        show: (p) => el("span", {}, link(p.name, "pods", p.id), el("small", { class: "narrow" }, p.namespace)) },
      { title: "Namespace", wide: 1, text: (p) => p.namespace },
      { title: "State", text: (p) => p.state, show: (p) => badge(p.state, kindOf(p.state)) },
      { title: "Ready", number: true, wide: 1, value: (p) => p.running, text: (p) => p.running + "/" + p.containers },
      { title: "Restarts", number: true, wide: 1, value: (p) => restarts(own(p)), text: (p) => String(restarts(own(p))) },
      ...usageColumns((p) => usage[p.id]), ...networkColumns((p) => usage[p.id]),
      ageColumn((p) => p.createdAt, () => now(), 1),
      { title: "Image", wide: 2, class: "long", text: (p) => images(p).join(", ") },
      { title: "IP", wide: 3, text: (p) => (p.ips || []).join(", ") },
    ],
  });
  const bar = filterBar(table, "Filter by name, image or address",
    (p) => [p.name, p.namespace, p.state, p.id, ...(p.ips || []), ...images(p)].join(" "),
    [{ title: "All namespaces", value: (p) => p.namespace }, { title: "All states", value: (p) => p.state }]);
  return {
    title: "Pods", path: "pods", every: 2000, element: el("div", {}, bar.element, table.element),
    show(data, at) {
      now = at;
      ({ usage } = data);
      groups = byPod(data.containers);
      bar.update(data.pods);
      table.update(data.pods);
      setText(bar.count, plural(data.pods.length, "pod") + (data.pods.length ? ": " : "") +
        summary(data.pods, data.pods.map((p) => p.state), usage));
    },
  };
}

// containerColumns are those of a list of containers. open(container) is a node that leads to its log.
export const containerColumns = (usage, now, open) => [
  { title: "Container", text: (c) => c.name, class: "name", show: open },
  { title: "State", text: stateOf, show: (c) => badge(stateOf(c), kindOfContainer(c)) },
  { title: "Restarts", number: true, wide: 1, value: (c) => c.attempt, text: (c) => String(c.attempt) },
  { title: "Image", wide: 1, class: "long", text: (c) => c.image },
  ...usageColumns((c) => usage()[c.id]),
  ageColumn((c) => c.startedAt || c.createdAt, now, 1),
];

export function containersView() {
  let now = Date.now, usage = {};
  const columns = containerColumns(() => usage, () => now(), (c) => el("span", {}, link(c.name, "pods", c.podID, c.id),
    el("small", { class: "narrow" }, c.pod)));
  columns.splice(1, 0, { title: "Pod", wide: 1, class: "name", text: (c) => c.pod, show: (c) => link(c.pod, "pods", c.podID) },
    { title: "Namespace", wide: 2, text: (c) => c.namespace });
  const table = new Table({ caption: "Containers", key: (c) => c.id, empty: "There are no containers.", columns, sort: 1 });
  const bar = filterBar(table, "Filter by name, pod or image",
    (c) => [c.name, c.pod, c.namespace, c.image, stateOf(c), c.id].join(" "),
    [{ title: "All namespaces", value: (c) => c.namespace }, { title: "All states", value: (c) => c.state }]);
  return {
    title: "Containers", path: "pods", every: 2000, element: el("div", {}, bar.element, table.element),
    show(data, at) {
      now = at;
      ({ usage } = data);
      bar.update(data.containers);
      table.update(data.containers);
      setText(bar.count, plural(data.containers.length, "container") + (data.containers.length ? ": " : "") +
        summary(data.containers, data.containers.map((c) => c.state), usage));
    },
  };
}
