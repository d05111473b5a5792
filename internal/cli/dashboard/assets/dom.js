// Elements are made here and nowhere else. What is shown comes from strangers (names, images, logs), so that it is only
// ever set as text.

// el makes an element. Attributes are strings or booleans; a function is a listener; children are nodes or texts.
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// fill replaces what an element has.
export function fill(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// setText changes a text if it is another.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// link leads to a view of this page.
export const link = (text, ...parts) => el("a", { href: "#/" + parts.map(encodeURIComponent).join("/") }, text);

// badge is a state, with a colour beside its word.
export const badge = (text, kind) => el("span", { class: "badge " + kind }, text);

// share is a text with a bar of so many percent below it; without a share, there is no bar.
export function share(text, percent) {
  const cell = el("span", { class: "share" }, el("span", {}, text));
  if (percent === null) return cell;
  const bar = el("span", { class: "part" + (percent >= 90 ? " full" : ""), "aria-hidden": "true" });
  bar.style.width = Math.max(1, Math.min(100, percent)) + "%";
  cell.append(el("span", { class: "whole", "aria-hidden": "true", title: Math.round(percent) + " % of the limit" }, bar));
  return cell;
}
