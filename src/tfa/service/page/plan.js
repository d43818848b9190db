// The plan: every position of the map as a dot, the matches as numbered discs. Drawn here, no map tiles.
import { count } from "./dom.js";

const EARTH = 6371008.8; // mean radius in metres
const PAD = 34; // pixels around the plan: half a disc, and the scale below

/** Metres east and north of the first point. On the globe: equirectangular around the mean latitude. */
export function project(kind, points) {
  if (!points.length) return [];
  const [, x0, y0] = points[0];
  if (kind !== "latlon") return points.map(([id, x, y]) => ({ id, x: x - x0, y: y - y0 }));
  const radian = Math.PI / 180;
  const middle = points.reduce((sum, point) => sum + point[2], 0) / points.length;
  const squeeze = Math.cos(middle * radian);
  // The shorter way round: a town across the 180th meridian stays one town.
  const turn = (degrees) => ((((degrees + 180) % 360) + 360) % 360) - 180;
  return points.map(([id, lon, lat]) => ({ id, x: EARTH * squeeze * turn(lon - x0) * radian, y: EARTH * (lat - y0) * radian }));
}

/** 1, 2 or 5 times a power of ten, at most `most`. */
export function roundLength(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  const digit = most / power;
  return power * (digit >= 5 ? 5 : digit >= 2 ? 2 : 1);
}

const inMetres = (metres) => (metres >= 1000 ? `${metres / 1000} km` : `${Number(metres.toPrecision(3))} m`);

export class Plan {
  constructor(section, canvas, words) {
    Object.assign(this, { section, canvas, words, places: [], hits: [], pointed: null });
    new ResizeObserver(() => this.paint()).observe(section);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint());
  }

  take({ kind, points }) {
    this.kind = kind;
    this.places = kind ? project(kind, points) : [];
  }

  draw(hits) {
    this.hits = hits;
    this.section.hidden = this.places.length === 0;
    this.paint();
  }

  /** Emphasise one match, as when the pointer is on its card. */
  point(id) {
    this.pointed = id;
    this.paint();
  }

  /** Where a place is on the canvas: one scale for both directions, north is up. */
  layout(width) {
    const xs = this.places.map((place) => place.x);
    const ys = this.places.map((place) => place.y);
    const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
    const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);
    const [left, right, low, high] = [least(xs), most(xs), least(ys), most(ys)];
    const wide = Math.max(right - left, 1e-6);
    const tall = Math.max(high - low, 1e-6);
    const height = Math.round(Math.min(Math.max(((width - 2 * PAD) * tall) / wide + 2 * PAD, 200), 440));
    const scale = Math.min((width - 2 * PAD) / wide, (height - 2 * PAD) / tall, 1e6);
    const at = (place) => [
      width / 2 + (place.x - (left + right) / 2) * scale,
      height / 2 - (place.y - (low + high) / 2) * scale,
    ];
    return { height, scale, at };
  }

  paint() {
    const width = this.section.clientWidth && this.canvas.parentElement.clientWidth - 2 * parseFloat(getComputedStyle(this.section).paddingLeft);
    if (!this.places.length || width < 40) return; // not seen now
    const { height, scale, at } = this.layout(width);
    const sharp = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * sharp);
    this.canvas.height = Math.round(height * sharp);
    this.canvas.style.height = `${height}px`;
    const brush = this.canvas.getContext("2d");
    brush.scale(sharp, sharp);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    brush.font = "600 13px system-ui, sans-serif";
    brush.fillStyle = colour("dot");
    for (const place of this.places) {
      brush.beginPath();
      brush.arc(...at(place), 3, 0, 2 * Math.PI);
      brush.fill();
    }
    this.paintScale(brush, colour, scale, width, height);
    this.paintHits(brush, colour, at);
    this.describe();
  }

  paintScale(brush, colour, scale, width, height) {
    const metres = roundLength((width / 4) / scale);
    const long = metres * scale;
    brush.strokeStyle = colour("quiet");
    brush.fillStyle = colour("quiet");
    brush.lineWidth = 2;
    brush.beginPath();
    brush.moveTo(4, height - 10);
    brush.lineTo(4, height - 5);
    brush.lineTo(4 + long, height - 5);
    brush.lineTo(4 + long, height - 10);
    brush.stroke();
    brush.textAlign = "left";
    brush.textBaseline = "bottom";
    brush.fillText(inMetres(metres), 8, height - 8);
    brush.textAlign = "right";
    brush.fillText(this.kind === "latlon" ? "north is up" : "y is up, x to the right", width - 4, height - 4);
  }

  paintHits(brush, colour, at) {
    const places = new Map(this.places.map((place) => [place.id, place]));
    const ranked = this.hits.map((hit, index) => ({ hit, rank: index + 1 })).filter(({ hit }) => places.has(hit.id));
    // The best last, so that it lies on top; the one pointed at above all.
    ranked.sort((a, b) => (a.hit.id === this.pointed) - (b.hit.id === this.pointed) || b.rank - a.rank);
    brush.textAlign = "center";
    brush.textBaseline = "middle";
    for (const { hit, rank } of ranked) {
      const [x, y] = at(places.get(hit.id));
      const radius = (rank === 1 ? 13 : 10) + (hit.id === this.pointed ? 4 : 0);
      brush.beginPath();
      brush.arc(x, y, radius, 0, 2 * Math.PI);
      brush.fillStyle = hit.id === this.pointed ? colour("second") : colour("accent");
      brush.fill();
      brush.strokeStyle = colour("card");
      brush.lineWidth = 2;
      brush.stroke();
      brush.fillStyle = colour("on-accent");
      brush.fillText(String(rank), x, y + 1);
    }
  }

  /** The same in words: for those who do not see the drawing. */
  describe() {
    const known = new Set(this.places.map((place) => place.id));
    const there = this.hits.filter((hit) => known.has(hit.id));
    const words = `${count(this.places.length, "position")} of the map` +
      (there.length ? `; numbered: ${there.length === 1 ? "the match" : `the ${there.length} matches`} of your photo` : "");
    this.canvas.setAttribute("aria-label", `Plan with ${words}`);
    this.words.textContent = `${words}.`;
  }
}
