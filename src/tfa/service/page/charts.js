// SVG charts: a frame with ticks and labels, and dots or lines inside it.
import { makeSvg } from "./dom.js";

const WIDTH = 380;
const HEIGHT = 290;
const EDGE = { left: 56, right: 14, top: 12, bottom: 44 };

/** Return round values that divide a range into about `about` steps. */
export function ticks(low, high, about = 5) {
  const raw = (high - low) / about || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((digit) => digit * power >= raw);
  const ticks = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) ticks.push(Number(at.toPrecision(12)));
  return ticks;
}

const powersOfTen = (low, high) => {
  const ticks = [];
  for (let power = Math.ceil(Math.log10(low)); power <= Math.log10(high); power += 1) ticks.push(10 ** power);
  return ticks.length > 1 ? ticks : [low, high];
};

function short(value) {
  const far = Math.abs(value) >= 1e4 || (value !== 0 && Math.abs(value) < 1e-3);
  return far ? value.toExponential(0) : String(Number(value.toPrecision(3)));
}

/** Return a range slightly wider than the values, never empty. */
export function around(values, share = 0.06) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (!(low <= high)) return [0, 1];
  const margin = (high - low) * share || Math.abs(high) * 0.1 || 1;
  return [low - margin, high + margin];
}

/** Make an empty chart; `x` and `y` are {range, label, log}. Returns the node and the scales. */
export function frame({ title, x, y }) {
  const inner = { width: WIDTH - EDGE.left - EDGE.right, height: HEIGHT - EDGE.top - EDGE.bottom };
  const share = (axis, value) => {
    const way = axis.log ? Math.log10 : (plain) => plain;
    return (way(value) - way(axis.range[0])) / (way(axis.range[1]) - way(axis.range[0]));
  };
  const X = (value) => EDGE.left + inner.width * share(x, value);
  const Y = (value) => EDGE.top + inner.height * (1 - share(y, value));
  const node = makeSvg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
  const marks = (axis, about) => (axis.log ? powersOfTen(...axis.range) : ticks(...axis.range, about));
  const bottom = EDGE.top + inner.height;
  for (const value of marks(x, 5)) {
    node.append(makeSvg("path", { class: "axis grid", d: `M${X(value)} ${EDGE.top}V${bottom}` }),
      makeSvg("text", { x: X(value), y: bottom + 15, "text-anchor": "middle" }, short(value)));
  }
  for (const value of marks(y, 5)) {
    node.append(makeSvg("path", { class: "axis grid", d: `M${EDGE.left} ${Y(value)}H${EDGE.left + inner.width}` }),
      makeSvg("text", { x: EDGE.left - 6, y: Y(value) + 4, "text-anchor": "end" }, short(value)));
  }
  node.append(
    makeSvg("path", { class: "axis", d: `M${EDGE.left} ${EDGE.top}V${bottom}H${EDGE.left + inner.width}` }),
    makeSvg("text", { x: EDGE.left + inner.width / 2, y: HEIGHT - 8, "text-anchor": "middle" }, x.label),
    makeSvg("text", { x: -(EDGE.top + inner.height / 2), y: 13, transform: "rotate(-90)", "text-anchor": "middle" }, y.label));
  return { node, X, Y };
}

/** Draw many dots as one path of zero-length lines with round caps. */
export function dots(chart, xs, ys) {
  const d = xs.map((x, at) => `M${chart.X(x).toFixed(1)} ${chart.Y(ys[at]).toFixed(1)}h0`).join("");
  chart.node.append(makeSvg("path", { class: "dots", d }));
}

export function line(chart, xs, ys, kind) {
  const d = xs.map((x, at) => `${at ? "L" : "M"}${chart.X(x).toFixed(1)} ${chart.Y(ys[at]).toFixed(1)}`).join("");
  chart.node.append(makeSvg("path", { class: kind, d }));
}

/** Label points where no other label or point is, as far as possible. */
export function letters(chart, points) {
  const places = [[11, -6], [11, 14], [-11, -6], [-11, 14], [0, -12], [0, 20], [18, 4], [-18, 4], [18, -14], [-18, -14], [28, 4], [-28, 4]];
  const taken = points.map((point) => [chart.X(point.x), chart.Y(point.y)]);
  for (const point of points) {
    const [x, y] = [chart.X(point.x), chart.Y(point.y)];
    const spots = places.map(([dx, dy]) => [x + dx, y + dy - 4]);
    const room = (spot) => Math.min(...taken.map(([left, top]) => Math.hypot(spot[0] - left, spot[1] - top)));
    const free = spots.find((spot) => room(spot) > 10) || spots.reduce((best, spot) => (room(spot) > room(best) ? spot : best));
    taken.push(free);
    chart.node.append(makeSvg("text", { class: "letter", x: free[0], y: free[1] + 4, "text-anchor": "middle" }, point.letter));
  }
}
