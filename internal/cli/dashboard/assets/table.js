// A table that can be sorted and filtered, and that changes no more of the page than has changed: what a reader has
// selected or focused stays.

import { el, setText, fill } from "./dom.js";

// shown is how many rows are on the page at most.
const shown = 1000;

const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

function compare(a, b) {
  const missing = (v) => v === undefined || v === null;
  if (missing(a) || missing(b)) return missing(a) - missing(b);
  return typeof a === "number" && typeof b === "number" ? a - b : collator.compare(String(a), String(b));
}

// Table has columns: { title, value(row) for sorting, text(row), show(row) a node where the text alone is not enough,
// number: right-aligned and sorted downwards first, wide: 1 or 2, hidden on narrow screens }.
export class Table {
  constructor({ caption, columns, key, sort = 0, empty }) {
    this.columns = columns;
    this.key = key;
    this.empty = empty;
    this.sort = sort;
    this.down = false;
    this.rows = new Map(); // key → { tr, texts }
    this.list = [];
    this.filter = () => true;
    this.heads = columns.map((column, index) => {
      const button = el("button", { type: "button", click: () => this.sortBy(index) }, column.title,
        el("span", { class: "arrow", "aria-hidden": "true" }));
      return el("th", { scope: "col", class: this.classOf(column) }, button);
    });
    this.body = el("tbody");
    this.note = el("p", { class: "note" });
    const table = el("table", {}, el("caption", { class: "unseen" }, caption), el("thead", {}, el("tr", {}, ...this.heads)),
      this.body);
    this.element = el("div", { class: "table" }, el("div", { class: "scroll" }, table), this.note);
    this.mark();
  }

  classOf(column) {
    return [column.number ? "number" : "", column.wide ? "wide" + column.wide : "", column.class || ""].join(" ").trim();
  }

  sortBy(index) {
    this.down = this.sort === index ? !this.down : Boolean(this.columns[index].number);
    this.sort = index;
    this.mark();
    this.draw();
  }

  mark() {
    this.heads.forEach((head, index) => {
      if (index === this.sort) head.setAttribute("aria-sort", this.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  // update takes another list of rows.
  update(list) {
    this.list = list;
    this.draw();
  }

  draw() {
    const column = this.columns[this.sort];
    const value = column.value || column.text;
    const sign = this.down ? -1 : 1;
    const rows = this.list.filter(this.filter)
      .map((row, index) => ({ row, index, by: value(row) }))
      .sort((a, b) => {
        const missing = (v) => v === undefined || v === null;
        // What is not known comes last both ways.
        const order = missing(a.by) || missing(b.by) ? compare(a.by, b.by) : sign * compare(a.by, b.by);
        return order || a.index - b.index;
      });
    const page = rows.slice(0, shown).map(({ row }) => [this.key(row), row]);
    const kept = new Set(page.map(([key]) => key));
    for (const [key, { tr }] of this.rows) {
      if (!kept.has(key)) {
        tr.remove();
        this.rows.delete(key);
      }
    }
    let at = this.body.firstElementChild;
    for (const [key, row] of page) {
      const tr = this.rowOf(key, row);
      if (tr === at) at = at.nextElementSibling;
      else if (tr.isConnected && this.body.moveBefore) this.body.moveBefore(tr, at); // keeps the focus
      else this.body.insertBefore(tr, at);
    }
    setText(this.note, this.list.length === 0 ? this.empty : rows.length === 0 ? "Nothing fits the filter." :
      rows.length > shown ? `The first ${shown} of ${rows.length}: filter to see others.` : "");
    this.element.classList.toggle("empty", rows.length === 0);
  }

  rowOf(key, row) {
    let known = this.rows.get(key);
    if (!known) {
      const cells = this.columns.map((column, index) =>
        el(index === 0 ? "th" : "td", { class: this.classOf(column), scope: index === 0 ? "row" : undefined }));
      known = { tr: el("tr", {}, ...cells), cells, texts: [] };
      this.rows.set(key, known);
    }
    this.columns.forEach((column, index) => {
      const text = column.text(row);
      if (known.texts[index] === text) return;
      known.texts[index] = text;
      fill(known.cells[index], column.show ? column.show(row) : text === "" ? "–" : text);
    });
    return known.tr;
  }
}

// filterBar is the input above a table, and menus beside it. words(row) is the text that is searched; menus are
// { title, value(row) }.
export function filterBar(table, label, words, menus = []) {
  const count = el("output", { class: "count" });
  const search = el("input", { type: "search", placeholder: label, "aria-label": label, spellcheck: "false", input: apply });
  const selects = menus.map((menu) => el("select", { "aria-label": menu.title, change: apply },
    el("option", { value: "" }, menu.title)));
  function apply() {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    table.filter = (row) => {
      if (menus.some((menu, i) => selects[i].value && menu.value(row) !== selects[i].value)) return false;
      const text = words(row).toLowerCase();
      return wanted.every((word) => text.includes(word));
    };
    table.draw();
  }
  // update offers the values that the rows have.
  const update = (rows) => menus.forEach((menu, i) => {
    const values = [...new Set(rows.map(menu.value))].filter(Boolean).sort(collator.compare);
    const select = selects[i], old = [...select.options].slice(1).map((option) => option.value);
    if (old.join("\n") === values.join("\n")) return;
    const chosen = select.value;
    fill(select, select.options[0], ...values.map((value) => el("option", { value }, value)));
    select.value = values.includes(chosen) ? chosen : "";
    apply();
  });
  return { element: el("div", { class: "bar" }, search, ...selects, count), update, count };
}
