// The page as a whole: which view is shown, when its data is asked for, and what the banner says.

import { findToken, get } from "./api.js";
import { el, fill, setText } from "./dom.js";
import { containersView, podsView } from "./views/pods.js";
import { podView } from "./views/pod.js";
import { devicesView, imagesView, spaceView, volumesView } from "./views/lists.js";
import { eventsView } from "./views/events.js";

const main = document.getElementById("main");
const banner = document.getElementById("banner");
const node = document.getElementById("node");

const makers = { pods: podsView, containers: containersView, images: imagesView, volumes: volumesView,
  devices: devicesView, events: eventsView, space: spaceView };
const views = new Map(); // views stay as they are left: sorted, filtered
const titled = el("h1");
const note = el("p", { class: "note", role: "status" });

let current = null; // the view that is shown
let stopped = new AbortController(); // ends what the view has asked for
let problem = null; // why there is no data: a Failure

// say shows a failure that concerns the whole page, or none.
function say(failure) {
  problem = failure;
  const texts = {
    away: "berthd does not answer. What is shown may be old. Trying again…",
    ended: "The dashboard does not answer: `berth dashboard` has ended. What is shown may be old. Trying again…",
    denied: failure?.message,
  };
  const text = failure ? texts[failure.kind] || "" : "";
  banner.hidden = text === "";
  setText(banner, text);
  document.body.classList.toggle("stale", text !== "");
}

const wait = (milliseconds, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, milliseconds);
  signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
});

// poll asks for the data of a view again and again, until the view is left.
async function poll(view, signal) {
  let first = !view.loaded;
  while (!signal.aborted) {
    if (first) setText(note, "Loading…");
    main.setAttribute("aria-busy", String(first));
    try {
      const { data, now } = await get(view.path, signal);
      if (signal.aborted) return;
      view.show(data, now, signal);
      if (first) fill(main, titled, view.element);
      first = false;
      view.loaded = true;
      entitle(view);
      say(null);
    } catch (failure) {
      if (signal.aborted) return;
      if (!failure.kind) throw failure;
      say(failure);
      if (failure.kind === "none") {
        fill(main, titled, el("p", { class: "note" }, failure.message), el("p", {}, el("a", { href: "#/pods" }, "All pods")));
        return;
      }
      if (failure.kind === "other") {
        fill(main, titled, note);
        setText(note, failure.message);
        first = true;
      } else if (first) setText(note, failure.kind === "denied" ? "" : "Nothing has been read yet.");
      if (failure.kind === "denied") return;
    }
    main.setAttribute("aria-busy", "false");
    await wait(problem ? Math.min(1000, view.every) : view.every, signal);
  }
}

function entitle(view) {
  setText(titled, view.title);
  document.title = view.title + " · Berth";
}

// leave stops what the view that is shown has asked for.
function leave() {
  stopped.abort();
  stopped = new AbortController();
  current?.pause?.();
}

// enter asks for what the current view shows.
function enter() {
  const view = current;
  view.resume?.();
  if (view.path) poll(view, stopped.signal);
}

// route shows the view that the address names: #/pods, #/pods/ID, #/pods/ID/CONTAINER, #/images and so on.
function route() {
  const [name, id, container] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  const key = name === "pods" && id ? "pods/" + id : makers[name] ? name : "pods";
  for (const anchor of document.querySelectorAll("#nav a")) {
    if (anchor.getAttribute("href") === "#/" + key.split("/")[0]) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
  if (current?.key === key) {
    current.choose?.(container);
    return;
  }
  leave();
  if (!views.has(key)) {
    for (const other of views.keys()) if (other.includes("/")) views.delete(other); // one pod at a time
    views.set(key, Object.assign(id && name === "pods" ? podView(id, container) : makers[key](), { key }));
  }
  current = views.get(key);
  if (container) current.choose?.(container);
  entitle(current);
  const ready = current.loaded || !current.path;
  fill(main, titled, ready ? current.element : note);
  window.scrollTo(0, 0);
  enter();
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return "";
  }
}

// watchNode keeps the head of the page, and notices when the runtime goes and comes.
async function watchNode() {
  const never = new AbortController().signal;
  for (;;) {
    try {
      const { data } = await get("node");
      setText(node, `${data.host} · ${data.runtime}`);
      node.title = data.address;
      node.classList.toggle("bad", Boolean(data.trouble));
      if (data.trouble) setText(node, `${data.host} · ${data.trouble.join("; ")}`);
      if (!current?.path) say(null);
    } catch (failure) {
      if (!failure.kind) throw failure;
      if (!current?.path || failure.kind === "denied") say(failure);
      if (failure.kind === "denied") return;
    }
    await wait(problem ? 1000 : 5000, never);
  }
}

await findToken();
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the fragment names the view
  main.focus();
});
addEventListener("hashchange", route);
// A page that nobody sees asks for nothing, and leaves its connections to others.
document.addEventListener("visibilitychange", () => {
  leave();
  if (!document.hidden) enter();
});
route();
watchNode();
