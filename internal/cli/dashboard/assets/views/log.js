// The log of a container, followed as it is written. The page keeps the last lines of it.

import { follow } from "../api.js";
import { el, fill, setText } from "../dom.js";
import { clock, moment, plural } from "../format.js";

const tails = [100, 500, 1000, 5000];

// escapes are colours and movements of a terminal's cursor, which mean nothing here.
const escapes = /\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])/g;

const patience = 1500; // milliseconds before a stream that broke off is opened again

export class LogPanel {
  constructor(container) {
    this.id = container.id;
    this.tail = 500;
    this.waiting = []; // lines that are not on the page yet
    this.stopped = null; // ends the stream
    this.lines = el("div", { class: "log", role: "log", tabindex: "0", "aria-label": "Log of " + container.name,
      "aria-live": "off", scroll: () => this.scrolled() });
    this.state = el("span", { class: "note", role: "status" });
    this.search = el("input", { type: "search", placeholder: "Filter lines", "aria-label": "Filter lines",
      spellcheck: "false", input: () => this.filter() });
    const toggle = (text, name, on) => {
      const box = el("input", { type: "checkbox", checked: on, change: () => this.lines.classList.toggle(name, box.checked) });
      this.lines.classList.toggle(name, Boolean(on));
      return el("label", {}, box, text);
    };
    this.following = el("input", { type: "checkbox", checked: true, change: () => this.scroll() });
    const choice = el("select", { "aria-label": "Number of lines", change: () => {
      this.tail = Number(choice.value);
      this.open();
    } }, ...tails.map((n) => el("option", { value: n, selected: n === this.tail }, "last " + n)));
    this.title = el("h2", {}, "Log of " + container.name);
    this.element = el("section", { class: "logs", "aria-label": "Log" }, el("div", { class: "bar" }, this.title,
      this.search, choice, el("label", {}, this.following, "Follow"), toggle("Time", "timed", false),
      toggle("Wrap", "wrapped", true), this.state), this.lines);
    this.open();
  }

  update(container) {
    if (container) setText(this.title, "Log of " + container.name + (container.attempt ? " #" + container.attempt : ""));
  }

  close() {
    this.stopped?.abort();
    this.stopped = null;
  }

  // open reads the log from its last lines on, again after it broke off.
  async open() {
    this.close();
    const stopped = (this.stopped = new AbortController());
    while (!stopped.signal.aborted) {
      let ended = false;
      setText(this.state, "Loading…");
      try {
        await follow(`containers/${encodeURIComponent(this.id)}/log?tail=${this.tail}`, stopped.signal, (batch) => {
          if (stopped.signal.aborted) return;
          if (batch.skipped) this.take([{ note: plural(batch.skipped, "line") + " left out: they came too fast." }]);
          this.take(batch.lines || []);
          if (batch.ended) ended = true;
        }, () => {
          this.waiting = [];
          fill(this.lines);
          setText(this.state, "");
        });
        if (ended) {
          setText(this.state, "The container has ended.");
          return;
        }
      } catch (failure) {
        if (stopped.signal.aborted) return;
        setText(this.state, failure.message + (failure.kind === "none" ? "" : " Trying again."));
        if (failure.kind === "none" || failure.kind === "denied") return;
      }
      await new Promise((resolve) => setTimeout(resolve, patience));
    }
  }

  // take puts lines on the page with the next frame, and forgets what is before the last ones.
  take(lines) {
    if (lines.length === 0) return;
    if (this.waiting.length === 0) requestAnimationFrame(() => this.draw());
    this.waiting.push(...lines);
    if (this.waiting.length > this.tail) this.waiting.splice(0, this.waiting.length - this.tail);
  }

  draw() {
    const wanted = this.search.value.toLowerCase();
    const made = this.waiting.map((line) => this.lineOf(line, wanted));
    this.waiting = [];
    this.lines.append(...made);
    while (this.lines.childElementCount > this.tail) this.lines.firstElementChild.remove();
    this.scroll();
  }

  lineOf(line, wanted) {
    if (line.note) return el("div", { class: "line left" }, line.note);
    const text = line.text.replace(escapes, "") + (line.cut ? " …" : "");
    return el("div", { class: "line" + (line.stderr ? " stderr" : ""), hidden: !text.toLowerCase().includes(wanted) },
      el("time", { datetime: line.time, title: moment(line.time) }, clock(line.time)), el("span", {}, text || " "));
  }

  filter() {
    const wanted = this.search.value.toLowerCase();
    for (const line of this.lines.children) {
      line.hidden = !line.lastChild.textContent.toLowerCase().includes(wanted);
    }
    this.scroll();
  }

  scroll() {
    if (this.following.checked) this.lines.scrollTop = this.lines.scrollHeight;
  }

  // scrolled: who scrolls up reads there, and who comes back to the end follows.
  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.lines;
    this.following.checked = scrollTop + clientHeight >= scrollHeight - 24;
  }
}
