// Elements, number formats, and the page's data. File names become text, never HTML.
const byId = (id) => document.getElementById(id);
const content = JSON.parse(byId("content").textContent);
const photos = JSON.parse(byId("photos").textContent);

/** Make an element from attributes, listeners (functions), and text or child elements. */
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const counted = (number, one, several = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : several}`;
const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "–");
const inMetres = (metres) => (metres >= 1000 ? `${(metres / 1000).toFixed(1)} km` : `${metres < 10 ? metres.toFixed(1) : Math.round(metres)} m`);
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** A thumbnail, or a box that says that there is no photo. */
function picture(source, alt, lazy = false) {
  if (!source) return make("div", { class: "gone" }, "no photo");
  return make("img", { src: source, alt, decoding: "async", loading: lazy ? "lazy" : null });
}

/** Repaint when the color scheme changes: a canvas does not follow it. */
const onScheme = (paint) => matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
