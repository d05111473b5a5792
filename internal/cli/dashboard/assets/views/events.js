// What happens to pods and containers, as it happens.

import { follow } from "../api.js";
import { badge, el, link, setText } from "../dom.js";
import { clock, kindOf, moment, plural } from "../format.js";

const kept = 1000;
const patience = 1500; // milliseconds before a stream that broke off is opened again

const words = { away: "berthd was stopped, or is being restarted", back: "berthd answers again",
  "without events": "this runtime tells no events" };

export function eventsView() {
  let after = 0, stopped = null;
  const body = el("tbody");
  const note = el("p", { class: "note", role: "status" }, "Loading…");
  const count = el("output", { class: "count" });
  const search = el("input", { type: "search", placeholder: "Filter by pod, container or event",
    "aria-label": "Filter events", spellcheck: "false", input: () => {
      for (const row of body.children) row.hidden = !fits(row);
    } });
  const fits = (row) => row.textContent.toLowerCase().includes(search.value.toLowerCase());
  const head = ["Time", "Kind", "Event", "Of", "Outcome"].map((title) =>
    el("th", { scope: "col", class: title === "Kind" ? "wide1" : "" }, title));
  const element = el("div", {}, el("div", { class: "bar" }, search, count), el("div", { class: "table" },
    el("div", { class: "scroll" }, el("table", { class: "events" }, el("caption", { class: "unseen" }, "Events, the newest first"),
      el("thead", {}, el("tr", {}, ...head)), body)), note));

  function add(e) {
    const subject = e.kind === "runtime" ? words[e.event] || "" : e.event === "deleted" && e.kind === "pod" ? e.subject :
      e.podID ? link(e.subject, "pods", e.podID) : e.subject;
    const row = el("tr", {}, el("td", { title: moment(e.time), class: "code" }, clock(e.time)),
      el("td", { class: "wide1" }, e.kind), el("td", {}, badge(e.event, kindOf(e.event))), el("td", { class: "name" }, subject),
      el("td", {}, e.outcome || ""));
    row.hidden = !fits(row);
    body.prepend(row);
    while (body.childElementCount > kept) body.lastElementChild.remove();
  }

  async function run(signal) {
    while (!signal.aborted) {
      try {
        await follow("events?after=" + after, signal, (batch) => {
          if (signal.aborted) return;
          for (const e of batch.events || []) {
            add(e);
            after = e.number;
          }
          setText(note, body.firstChild ? "" : "Nothing has happened since `berth dashboard` was started. Events appear here.");
          setText(count, plural(body.childElementCount, "event"));
        });
      } catch (failure) {
        if (signal.aborted) return;
        setText(note, failure.message + " Trying again.");
      }
      await new Promise((resolve) => setTimeout(resolve, patience));
    }
  }

  return {
    title: "Events", element,
    resume() {
      stopped?.abort();
      stopped = new AbortController();
      run(stopped.signal);
    },
    pause() { stopped?.abort(); },
  };
}
