// The plan: every position of the map as a dot, the matches as numbered discs. Drawn here, no map tiles.
import { showPhoto } from "./api.js";
import { count, make, positionInWords } from "./dom.js";
import { PlanView } from "./plan_view.js";

const EARTH = 6371008.8; // mean radius in metres
const CLOSEST = 40; // pixels a metre: a map of one place is not shown at the scale of its stones

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

export class Plan {
  /** `section` has a title and is filled here; `instead` is shown in place of a plan without positions, if given. */
  constructor(section, instead = null) {
    Object.assign(this, { section, instead, places: [], hits: [], pointed: null, picked: null });
    const id = (name) => `${section.id}-${name}`;
    this.canvas = make("canvas", { id: id("canvas"), class: "plan-canvas", tabindex: "0", role: "application", "aria-describedby": id("words") });
    this.words = make("p", { id: id("words"), class: "quiet" });
    this.photo = make("figure", { class: "picked", "aria-live": "polite", hidden: true });
    const [closer, further, all] = ["Closer", "Further", "All"].map((name) => make("button", { type: "button" }, name));
    this.drawn = make("div", {}, this.canvas, make("div", { class: "plan-below" },
      make("div", {}, this.words, make("div", { class: "row small-buttons" }, closer, further, all)), this.photo));
    section.append(this.drawn);
    this.view = new PlanView(this.canvas, {
      places: () => this.places.map(at), draw: (brush) => this.draw(brush), pick: (spot, reach) => this.pick(spot, reach), closest: CLOSEST });
    this.view.takeButtons({ closer, further, all });
  }

  /** The positions of a map; the part of the plan that is looked at stays while they do. */
  take({ kind, points }) {
    const same = this.points && this.kind === kind && this.points.length === points.length
      && points.every((point, index) => point.every((value, axis) => value === this.points[index][axis]));
    Object.assign(this, { kind, points });
    this.places = kind ? project(kind, points) : [];
    if (same) return;
    this.view.fitted = null;
    this.choose(null);
  }

  show(hits) {
    this.hits = hits;
    const empty = this.places.length === 0;
    this.section.hidden = empty && !this.instead;
    this.drawn.hidden = empty;
    if (this.instead) this.instead.hidden = !empty;
    this.view.paint();
  }

  /** Emphasise one match, as when the pointer is on its card. */
  point(id) {
    this.pointed = id;
    this.view.paint();
  }

  pick(spot, reach) {
    const found = this.view.nearest(this.places.map(at), spot, reach);
    if (found >= 0) this.choose(this.places[found].id === this.picked ? null : found);
  }

  /** Show the photo of a place beside the plan; that of none takes it away. */
  choose(index) {
    this.picked = index === null ? null : this.places[index].id;
    this.photo.hidden = index === null;
    if (index !== null) {
      const image = make("img", { alt: `Map photo ${this.picked}` });
      const [, first, second] = this.points[index];
      const where = positionInWords(this.kind === "latlon" ? { lat: second, lon: first } : { x: first, y: second });
      showPhoto(image, `v1/images/${this.picked}/file`, 320);
      this.photo.replaceChildren(image, make("figcaption", {}, `Photo ${this.picked} · ${where}`));
    }
    this.view.paint();
  }

  draw(brush) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    brush.fillStyle = colour("dot");
    for (const place of this.places) this.view.dot(brush, at(place), 3);
    this.view.paintScale(brush, colour("quiet"));
    const picked = this.places.find((place) => place.id === this.picked);
    if (picked) {
      brush.fillStyle = colour("second");
      this.view.dot(brush, at(picked), 7);
    }
    this.drawHits(brush, colour);
    this.describe();
  }

  drawHits(brush, colour) {
    const places = new Map(this.places.map((place) => [place.id, place]));
    const ranked = this.hits.map((hit, index) => ({ hit, rank: index + 1 })).filter(({ hit }) => places.has(hit.id));
    // The best last, so that it lies on top; the one pointed at above all.
    ranked.sort((a, b) => (a.hit.id === this.pointed) - (b.hit.id === this.pointed) || b.rank - a.rank);
    Object.assign(brush, { font: "600 13px system-ui, sans-serif", textAlign: "center", textBaseline: "middle" });
    for (const { hit, rank } of ranked) {
      const place = at(places.get(hit.id));
      const [x, y] = this.view.spot(place);
      const chosen = hit.id === this.pointed || hit.id === this.picked;
      brush.fillStyle = chosen ? colour("second") : colour("accent");
      this.view.dot(brush, place, (rank === 1 ? 13 : 10) + (chosen ? 4 : 0));
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
    const matches = there.length === 1 ? "the match of your photo" : `the ${there.length} matches of your photo, 1 is the answer`;
    const words = `${count(this.places.length, "position")} of the map${there.length ? `; numbered: ${matches}` : ""}.`;
    const way = this.kind === "latlon" ? "North is up." : "y is up, x to the right.";
    const told = `${words} ${way} Drag to move, turn the wheel to scale, click on a dot to see its photo.`;
    if (told === this.words.textContent) return;
    this.canvas.setAttribute("aria-label", `Plan with ${words}`);
    this.words.textContent = told;
  }
}

const at = (place) => [place.x, place.y];
