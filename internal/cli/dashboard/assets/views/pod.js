// One pod: what it is, its containers, the log of one of them, and where the time of its start went.

import { get } from "../api.js";
import { badge, el, fill, link, setText } from "../dom.js";
import { age, bytes, cpu, kindOf, milliseconds, moment, percentOf, shortID, stateOf } from "../format.js";
import { Table } from "../table.js";
import { LogPanel } from "./log.js";
import { containerColumns } from "./pods.js";

// facts are pairs of a term and a text; those without a text are left out.
const facts = (list, pairs) => fill(list, ...pairs.filter(([, text]) => text)
  .map(([term, text]) => el("div", {}, el("dt", {}, term), el("dd", {}, text))));

function used(word, value, limit) {
  const percent = percentOf(value, limit);
  return word(value) + (percent === null ? "" : ` of ${word(limit)} (${percent.toFixed(0)} %)`);
}

// waterfall draws the steps of a start as a table with bars.
function waterfall(line) {
  const owners = [...new Set(line.bars.map((bar) => bar.of))];
  let last = "";
  const rows = line.bars.map((bar) => {
    const piece = el("span", { class: "step of" + (owners.indexOf(bar.of) % 6) + (bar.part ? " inner" : "") });
    piece.style.marginLeft = (100 * bar.offset) / line.total + "%";
    piece.style.width = (100 * bar.took) / line.total + "%";
    const of = bar.of === last ? "" : bar.of;
    last = bar.of;
    return el("tr", {}, el("td", {}, of), el("th", { scope: "row", class: bar.part ? "inner" : "" }, bar.step),
      el("td", { class: "number" }, milliseconds(bar.took)), el("td", { class: "lane", "aria-hidden": "true" }, piece));
  });
  return el("div", { class: "scroll" }, el("table", { class: "waterfall" },
    el("caption", { class: "unseen" }, "Steps of the pod's start"),
    el("thead", {}, el("tr", {}, ...["Of", "Step", "Took"].map((title) => el("th", { scope: "col",
      class: title === "Took" ? "number" : "" }, title)), el("th", { scope: "col", "aria-hidden": "true" }))),
    el("tbody", {}, ...rows)));
}

export function podView(id, chosen) {
  let now = Date.now, usage = {}, containers = [], drawn = "", panel = null;
  const heading = el("span");
  const state = el("span");
  const list = el("dl", { class: "facts" });
  const logPlace = el("div");
  const linePlace = el("div", {}, el("p", { class: "note" }, "Loading…"));
  const lineTitle = el("h2", {}, "Start");
  const table = new Table({
    caption: "Containers of the pod", key: (c) => c.id, empty: "The pod has no containers.",
    columns: containerColumns(() => usage, () => now(),
      (c) => el("a", { href: "#/pods/" + encodeURIComponent(id) + "/" + encodeURIComponent(c.id) }, c.name)),
  });
  const element = el("div", {}, el("p", { class: "crumb" }, state, " ", heading, " · ", link("All pods", "pods")), list,
    el("h2", {}, "Containers"), table.element, logPlace, lineTitle, linePlace);

  // openLog shows the log of the chosen container, else of the one that was started last.
  function openLog() {
    const sorted = [...containers].sort((a, b) => (a.createdAt < b.createdAt ? 1 : -1));
    const container = containers.find((c) => c.id === chosen) || sorted.find((c) => c.state === "running") || sorted[0];
    if (!container || panel?.id === container.id) return;
    panel?.close();
    panel = new LogPanel(container);
    fill(logPlace, panel.element);
    for (const row of table.element.querySelectorAll("tbody tr")) row.classList.remove("chosen");
    table.rows.get(container.id)?.tr.classList.add("chosen");
  }

  // drawLine asks for the timeline again when containers have come, started or gone.
  async function drawLine(signal) {
    const wanted = containers.map((c) => c.id + c.state).join();
    if (wanted === drawn) return;
    drawn = wanted;
    try {
      const { data } = await get("pods/" + encodeURIComponent(id) + "/timeline", signal);
      setText(lineTitle, data.bars.length ? "Start: " + milliseconds(data.total) : "Start");
      fill(linePlace, data.bars.length ? waterfall(data) :
        el("p", { class: "note" }, "The runtime does not tell the times of this pod's steps."));
    } catch (failure) {
      drawn = "";
      if (!signal.aborted) fill(linePlace, el("p", { class: "note" }, failure.message));
    }
  }

  return {
    title: "Pod", path: "pods/" + encodeURIComponent(id), every: 2000, element, nav: "pods",
    show(data, at, signal) {
      now = at;
      ({ usage, containers } = data);
      const pod = data.pod, u = usage[pod.id] || {};
      this.title = pod.name;
      setText(heading, "in " + pod.namespace);
      fill(state, badge(pod.state, kindOf(pod.state)));
      facts(list, [
        ["Age", age(now() - Date.parse(pod.createdAt))], ["Created", moment(pod.createdAt)],
        ["Addresses", (pod.ips || []).join(", ")], ["Ports", (pod.ports || []).join(", ")],
        ["CPU", used(cpu, u.cpu, u.cpuLimit)], ["Memory", used(bytes, u.memory, u.memoryLimit)],
        ["Network", u.received === undefined ? "" : bytes(u.received) + " in, " + bytes(u.sent) + " out"],
        ["Processes", u.processes === undefined ? "" : String(u.processes)], ["Handler", pod.handler],
        ["ID", shortID(pod.id)], ["UID", pod.uid],
        ["Labels", Object.entries(pod.labels || {}).map(([k, v]) => k + "=" + v).join(", ")],
        ...containers.filter((c) => c.message).map((c) => [c.name + " " + stateOf(c), c.message]),
      ]);
      table.update(containers);
      openLog();
      panel?.update(containers.find((c) => c.id === panel.id));
      drawLine(signal);
    },
    // choose takes another container of the same pod.
    choose(container) {
      chosen = container;
      openLog();
    },
    resume() { panel?.open(); },
    pause() { panel?.close(); },
  };
}
