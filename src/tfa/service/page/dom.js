// Helpers to build elements. Text is only inserted as text nodes, so nothing from the service is parsed as HTML.

export const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Set attributes of an existing element. */
export const change = (node, attributes) => fill(node, attributes, []);

/** Make an element: attributes by name, functions as listeners, then text or elements. */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Show the message of an error, or hide the alert if there is none. */
export function alertIn(id, error) {
  const place = byId(id);
  const text = error ? error.message || String(error) : "";
  place.textContent = text;
  place.hidden = !text;
}

export function say(id, text) {
  byId(id).textContent = text;
}

export function number(value, digits = 3) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "–";
  return value.toFixed(digits);
}

export const signed = (value, digits = 3) => (value >= 0 ? "+" : "−") + number(Math.abs(value), digits);

export const count = (n, one, several = `${one}s`) => `${n} ${n === 1 ? one : several}`;

export function positionInWords(position) {
  if (!position) return null;
  if (typeof position.lat === "number") {
    const north = position.lat < 0 ? "S" : "N";
    const east = position.lon < 0 ? "W" : "E";
    // No-break spaces keep a number and its unit on one line.
    return `${Math.abs(position.lat).toFixed(5)}°\u00a0${north}, ${Math.abs(position.lon).toFixed(5)}°\u00a0${east}`;
  }
  return `x\u00a0${position.x.toFixed(1)}\u00a0m, y\u00a0${position.y.toFixed(1)}\u00a0m`;
}

/** Make a bar for a value from 0 to 1; with a label it is a meter for screen readers, else decoration. */
export function bar(share, label = null, kind = "") {
  const inner = make("i");
  const width = Math.max(0, Math.min(1, share || 0));
  inner.style.width = `${100 * width}%`; // set by script, since the page's policy forbids style attributes
  const meaning = label
    ? { role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 1, "aria-valuenow": width.toFixed(3) }
    : { "aria-hidden": "true" };
  return make("div", { class: `bar ${kind}`, ...meaning }, inner);
}

/** Make a table with a head row; numbers are right-aligned. */
export function table(head, rows, caption = null) {
  const cell = (tag, value) => make(tag, { class: typeof value === "number" ? "number" : null },
    value instanceof Node ? value : typeof value === "number" ? number(value) : String(value));
  const body = rows.map((row) => make("tr", { class: row.changed ? "changed" : null },
    ...row.cells.map((value) => cell("td", value))));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption || head.join(", ") },
    make("table", {},
      caption ? make("caption", { class: "unseen" }, caption) : null,
      make("thead", {}, make("tr", {}, ...head.map((name, at) => make("th", {
        scope: "col", class: typeof rows[0]?.cells[at] === "number" ? "number" : null }, name)))),
      make("tbody", {}, ...body)));
}
