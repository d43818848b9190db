// The plan: map images as dots, matches as numbered discs, the position estimate as a circle. No map tiles.
import { showPhoto } from "./api.js";
import { count, make, positionInWords } from "./dom.js";
import { PlanView } from "./plan_view.js";

const EARTH = 6371008.8; // mean radius in meters
const CLOSEST = 40; // largest initial scale in pixels per meter, for maps of a single place

/** Return meters east and north of the first point; for lat and lon an equirectangular projection. */
export function project(kind, points) {
  if (!points.length) return [];
  const [, x0, y0] = points[0];
  if (kind !== "latlon") return points.map(([id, x, y]) => ({ id, x: x - x0, y: y - y0 }));
  const radian = Math.PI / 180;
  const middle = points.reduce((sum, point) => sum + point[2], 0) / points.length;
  const squeeze = Math.cos(middle * radian);
  // Wrap longitudes, so that a town across the 180th meridian stays together.
  const turn = (degrees) => ((((degrees + 180) % 360) + 360) % 360) - 180;
  return points.map(([id, lon, lat]) => ({ id, x: EARTH * squeeze * turn(lon - x0) * radian, y: EARTH * (lat - y0) * radian }));
}

export class Plan {
  /** Fill `section`, which has a title; `instead` is shown if there are no positions. */
  constructor(section, instead = null) {
    Object.assign(this, { section, instead, places: [], hits: [], estimate: null, path: [], pointed: null, picked: null });
    const id = (name) => `${section.id}-${name}`;
    this.canvas = make("canvas", { id: id("canvas"), class: "plan-canvas", tabindex: "0", role: "application", "aria-label": "Plan", "aria-describedby": id("words") });
    this.words = make("p", { id: id("words"), class: "quiet" });
    this.photo = make("figure", { class: "picked", "aria-live": "polite", hidden: true });
    const [closer, further, all] = ["Zoom in", "Zoom out", "Fit"].map((name) => make("button", { type: "button" }, name));
    this.drawn = make("div", {}, this.canvas, make("div", { class: "plan-below" },
      make("div", {}, this.words, make("div", { class: "row small-buttons" }, closer, further, all)), this.photo));
    section.append(this.drawn);
    this.view = new PlanView(this.canvas, {
      places: () => this.places.map(at), draw: (brush) => this.draw(brush), pick: (spot, reach) => this.pick(spot, reach), closest: CLOSEST });
    this.view.takeButtons({ closer, further, all });
  }

  /** Set the positions of a map; zoom and pan stay if the positions are unchanged. */
  take({ kind, points }) {
    const same = this.points && this.kind === kind && this.points.length === points.length
      && points.every((point, index) => point.every((value, axis) => value === this.points[index][axis]));
    Object.assign(this, { kind, points });
    this.places = kind ? project(kind, points) : [];
    if (same) return;
    this.view.fitted = null;
    this.choose(null);
  }

  /** Show hits, a position estimate, `{ position, radius }` or null, and the path of earlier estimates. */
  show(hits, estimate = null, path = []) {
    Object.assign(this, { hits, estimate: this.locate(estimate), path: path.map((one) => this.locate(one)).filter(Boolean) });
    const empty = this.places.length === 0;
    this.section.hidden = empty && !this.instead;
    this.drawn.hidden = empty;
    if (this.instead) this.instead.hidden = !empty;
    this.view.paint();
  }

  /** Project a position estimate onto the plan; null if it is of another kind than the positions. */
  locate(estimate) {
    const [first, second] = this.kind === "latlon" ? ["lon", "lat"] : ["x", "y"];
    if (!this.places.length || typeof estimate?.position[first] !== "number") return null;
    const added = [...this.points, [null, estimate.position[first], estimate.position[second]]];
    return { ...project(this.kind, added).at(-1), radius: estimate.radius };
  }

  /** Emphasize one match, as when the pointer is on its card. */
  point(id) {
    this.pointed = id;
    this.view.paint();
  }

  pick(spot, reach) {
    const found = this.view.nearest(this.places.map(at), spot, reach);
    if (found >= 0) this.choose(this.places[found].id === this.picked ? null : found);
  }

  /** Show the map image of a dot next to the plan; null hides it. */
  choose(index) {
    this.picked = index === null ? null : this.places[index].id;
    this.photo.hidden = index === null;
    if (index !== null) {
      const image = make("img", { alt: `Map image ${this.picked}` });
      const [, first, second] = this.points[index];
      const where = positionInWords(this.kind === "latlon" ? { lat: second, lon: first } : { x: first, y: second });
      showPhoto(image, `v1/images/${this.picked}/file`, 320);
      this.photo.replaceChildren(image, make("figcaption", {}, `Image ${this.picked} · ${where}`));
    }
    this.view.paint();
  }

  draw(brush) {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(`--${name}`).trim();
    brush.fillStyle = color("dot");
    for (const place of this.places) this.view.dot(brush, at(place), 3);
    this.view.paintScale(brush, color("quiet"));
    const picked = this.places.find((place) => place.id === this.picked);
    if (picked) {
      brush.fillStyle = color("second");
      this.view.dot(brush, at(picked), 7);
    }
    this.drawPath(brush, color("good"));
    if (this.estimate) this.drawEstimate(brush, color("good"));
    this.drawHits(brush, color);
    this.describe();
  }

  drawPath(brush, ink) {
    brush.beginPath();
    for (const place of this.path) brush.lineTo(...this.view.spot(at(place)));
    Object.assign(brush, { strokeStyle: ink, lineWidth: 2 });
    brush.stroke();
  }

  drawEstimate(brush, ink) {
    brush.beginPath();
    brush.arc(...this.view.spot(at(this.estimate)), Math.max(this.estimate.radius * this.view.scale, 4), 0, 2 * Math.PI);
    Object.assign(brush, { fillStyle: ink, strokeStyle: ink, lineWidth: 2, globalAlpha: 0.15 });
    brush.fill();
    brush.globalAlpha = 1;
    brush.stroke();
  }

  drawHits(brush, color) {
    const places = new Map(this.places.map((place) => [place.id, place]));
    const ranked = this.hits.map((hit, index) => ({ hit, rank: index + 1 })).filter(({ hit }) => places.has(hit.id));
    // Draw the best match last, so that it is on top; an emphasized one is above all.
    ranked.sort((a, b) => (a.hit.id === this.pointed) - (b.hit.id === this.pointed) || b.rank - a.rank);
    Object.assign(brush, { font: "600 13px system-ui, sans-serif", textAlign: "center", textBaseline: "middle" });
    for (const { hit, rank } of ranked) {
      const place = at(places.get(hit.id));
      const [x, y] = this.view.spot(place);
      const chosen = hit.id === this.pointed || hit.id === this.picked;
      brush.fillStyle = chosen ? color("second") : color("accent");
      this.view.dot(brush, place, (rank === 1 ? 13 : 10) + (chosen ? 4 : 0));
      brush.strokeStyle = color("card");
      brush.lineWidth = 2;
      brush.stroke();
      brush.fillStyle = color("on-accent");
      brush.fillText(String(rank), x, y + 1);
    }
  }

  /** Describe the plan in text, for screen readers. */
  describe() {
    const known = new Set(this.places.map((place) => place.id));
    const there = this.hits.filter((hit) => known.has(hit.id));
    const matches = there.length === 1 ? "the match of your photo" : `the ${there.length} matches of your photo, 1 is the best`;
    const circle = (this.estimate ? "; circle: the estimated position" : "") + (this.path.length > 1 ? "; line: the path" : "");
    const words = `${count(this.places.length, "position")}${there.length ? `; numbered: ${matches}` : ""}${circle}.`;
    const way = this.kind === "latlon" ? "North is up." : "y is up, x to the right.";
    const text = `${words} ${way} Drag to move, scroll or pinch to zoom, click a dot to see its image.`;
    if (text === this.words.textContent) return;
    this.canvas.setAttribute("aria-label", `Plan with ${words}`);
    this.words.textContent = text;
  }
}

const at = (place) => [place.x, place.y];
