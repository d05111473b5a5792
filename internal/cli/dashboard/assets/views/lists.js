// Images, volumes, devices and disk space.

import { badge, el, fill, setText } from "../dom.js";
import { bytes, kindOf, plural, shortID } from "../format.js";
import { Table, filterBar } from "../table.js";
import { ageColumn } from "./columns.js";

const yes = (b) => (b ? "yes" : "");
const size = (title, value, wide) => ({ title, number: true, wide, value, text: (row) => bytes(value(row)) });

// listView is a view of one table with a filter.
function listView({ title, path, every, one, table, words, menus, placeholder, rows = (answer) => answer }) {
  const bar = filterBar(table, placeholder, words, menus);
  let at = Date.now;
  return {
    title, path, every, element: el("div", {}, bar.element, table.element), now: () => at(),
    show(answer, now) {
      at = now;
      const data = rows(answer);
      bar.update(data);
      table.update(data);
      setText(bar.count, plural(data.length, one));
    },
  };
}

export function imagesView() {
  const table = new Table({
    caption: "Images", key: (i) => i.id + " " + (i.name || ""), empty: "There are no images.",
    columns: [
      { title: "Image", text: (i) => i.name || "(without a name)", class: "name long" },
      { title: "ID", wide: 1, class: "code", text: (i) => shortID(i.id) },
      size("Size", (i) => i.size),
      size("Unshared", (i) => i.unsharedBytes || 0, 1),
      ageColumn((i) => i.pulledAt, () => view.now()),
      { title: "Pinned", wide: 1, text: (i) => yes(i.pinned) },
      { title: "User", wide: 2, text: (i) => i.user || "" },
    ],
  });
  const view = listView({ title: "Images", path: "images", every: 5000, one: "image", table,
    words: (i) => [i.name, i.id, ...(i.tags || []), ...(i.digests || [])].join(" "),
    placeholder: "Filter by name or digest" });
  return view;
}

export function volumesView() {
  const table = new Table({
    caption: "Named volumes", key: (v) => v.name, empty: "There are no named volumes.",
    columns: [
      { title: "Volume", text: (v) => v.name, class: "name" },
      { title: "Used by", text: (v) => (v.containers || []).join(", ") },
      { title: "Path", wide: 2, class: "code long", text: (v) => v.path },
      ageColumn((v) => v.createdAt, () => view.now()),
    ],
  });
  const view = listView({ title: "Volumes", path: "volumes", every: 5000, one: "volume", table,
    words: (v) => [v.name, v.path, ...(v.containers || [])].join(" "), placeholder: "Filter by name or container" });
  return view;
}

export function devicesView() {
  const health = (d) => d.health || "no device";
  const table = new Table({
    caption: "Devices of device plugins", key: (d) => d.resource + " " + (d.id || ""),
    empty: "No device plugin offers devices.",
    columns: [
      { title: "Resource", text: (d) => d.resource, class: "name" },
      { title: "Device", text: (d) => d.id || "" },
      { title: "Health", text: health, show: (d) => badge(health(d), kindOf(health(d).split(" ")[0])) },
      { title: "NUMA", wide: 1, text: (d) => (d.numaNodes || []).join(", ") },
      { title: "Held by", text: (d) => d.heldBy },
      { title: "Problem", wide: 2, class: "long", text: (d) => d.problem || "" },
    ],
  });
  return listView({ title: "Devices", path: "devices", every: 3000, one: "device", table,
    words: (d) => [d.resource, d.id, d.health, d.heldBy].join(" "), menus: [{ title: "All resources", value: (d) => d.resource }],
    placeholder: "Filter by device or container", rows(answer) {
      table.empty = answer.note || "No device plugin offers devices.";
      return answer.devices;
    } });
}

// spaceView is `berth system df -v`.
export function spaceView() {
  const kinds = new Table({
    caption: "Disk space by kind", key: (k) => k.name, empty: "", sort: 3,
    columns: [
      { title: "Kind", text: (k) => k.name, class: "name" },
      { title: "Total", number: true, value: (k) => k.total, text: (k) => String(k.total) },
      { title: "Active", number: true, value: (k) => k.active, text: (k) => String(k.active) },
      size("Size", (k) => k.bytes),
      size("Reclaimable", (k) => k.reclaimableBytes),
    ],
  });
  kinds.down = true;
  kinds.mark();
  const images = new Table({
    caption: "Images", key: (i) => i.id, empty: "There are no images.", sort: 2,
    columns: [
      { title: "Image", class: "name long", text: (i) => (i.names || []).join(", ") || shortID(i.id) },
      size("Size", (i) => i.bytes), size("Unshared", (i) => i.unsharedBytes),
      { title: "Used", wide: 1, text: (i) => yes(i.used) }, { title: "Pinned", wide: 1, text: (i) => yes(i.pinned) },
    ],
  });
  const containers = new Table({
    caption: "Containers", key: (c) => c.id, empty: "There are no containers.", sort: 1,
    columns: [
      { title: "Container", class: "name", text: (c) => c.name },
      size("Writable layer", (c) => c.writableBytes), size("Logs", (c) => c.logBytes),
      { title: "Running", wide: 1, text: (c) => yes(c.running) },
    ],
  });
  const volumes = new Table({
    caption: "Volumes", key: (v) => v.name, empty: "There are no named volumes.", sort: 1,
    columns: [
      { title: "Volume", class: "name", text: (v) => v.name }, size("Size", (v) => v.bytes),
      { title: "Used", wide: 1, text: (v) => yes(v.used) },
    ],
  });
  for (const table of [images, containers, volumes]) {
    table.down = true;
    table.mark();
  }
  const element = el("div");
  return {
    title: "Disk space", path: "space", every: 15000, nav: "space", element,
    show(data) {
      const kind = (name) => ({ name, ...data[name] });
      kinds.update(["images", "containers", "volumes", "logs"].map(kind));
      images.update(data.imageList || []);
      containers.update(data.containerList || []);
      volumes.update(data.volumeList || []);
      if (!element.firstChild) {
        fill(element, kinds.element, el("h2", {}, "Images"), images.element, el("h2", {}, "Containers"), containers.element,
          el("h2", {}, "Volumes"), volumes.element);
      }
    },
  };
}
