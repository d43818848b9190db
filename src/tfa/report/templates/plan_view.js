// A plan that can be panned, zoomed and picked from by pointer, touch, wheel and keys. Points are in meters, east and
// north; the caller draws them.

export class PlanView {
  static REACH = 14; // pixels from a point within which a click selects it
  static MARGIN = 28; // pixels around all points
  static STEP = 40; // pixels that an arrow key moves

  /**
   * `places()` returns all points ([x, y] or null), `draw(brush)` paints them at `spot`, `pick(at, reach)` is called on
   * click and Enter; `closest` is the largest scale of `fit`, in pixels per meter.
   */
  constructor(canvas, { places, draw, pick = () => {}, closest = 1e5 }) {
    Object.assign(this, { canvas, places, draw, pick, closest, scale: 1, x: 0, y: 0 });
    this.fitted = null; // canvas size of the last fit
    this.looked = false; // whether the user panned or zoomed; then a resize does not fit again
    this.pointers = new Map();
    this.moved = 0;
    this.listen();
    new ResizeObserver(() => this.paint()).observe(canvas);
    // A canvas does not follow a change of the color scheme.
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint());
  }

  get middle() {
    return [this.canvas.clientWidth / 2, this.canvas.clientHeight / 2];
  }

  /** Return the canvas position of a point: one scale for both axes, north is up. */
  spot([x, y]) {
    const [across, down] = this.middle;
    return [across + (x - this.x) * this.scale, down - (y - this.y) * this.scale];
  }

  fit() {
    const range = (axis) => this.places().filter(Boolean).reduce(([low, high], place) => [Math.min(low, place[axis]), Math.max(high, place[axis])], [Infinity, -Infinity]);
    const [[left, right], [low, high]] = [range(0), range(1)];
    this.x = (left + right) / 2;
    this.y = (low + high) / 2;
    const room = (length, span) => (length - 2 * PlanView.MARGIN) / Math.max(span, 1e-6);
    const { clientWidth: width, clientHeight: height } = this.canvas;
    this.scale = Math.min(room(width, right - left), room(height, high - low), this.closest);
    this.fitted = [width, height];
    this.looked = false;
  }

  zoom(factor, at = this.middle) {
    const [dx, dy] = at.map((value, axis) => value - this.middle[axis]);
    this.x += (dx / this.scale) * (1 - 1 / factor);
    this.y -= (dy / this.scale) * (1 - 1 / factor);
    this.scale *= factor;
    this.looked = true;
    this.paint();
  }

  pan(dx, dy) {
    this.x -= dx / this.scale;
    this.y += dy / this.scale;
    this.looked = true;
    this.paint();
  }

  showAll() {
    this.fitted = null;
    this.paint();
  }

  /** Return the index of the point nearest to a canvas position; -1 if none is within reach. */
  nearest(points, at, reach) {
    const away = points.map((point) => (point ? Math.hypot(...this.spot(point).map((value, axis) => value - at[axis])) : Infinity));
    const best = away.reduce((one, value, index) => (one < 0 || value < away[one] ? index : one), -1);
    return best >= 0 && away[best] <= reach && away[best] < Infinity ? best : -1;
  }

  paint() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (width < 40 || !this.places().some(Boolean)) return; // hidden or empty
    if (!this.fitted || (!this.looked && (this.fitted[0] !== width || this.fitted[1] !== height))) this.fit();
    const sharp = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * sharp);
    this.canvas.height = Math.round(height * sharp);
    const brush = this.canvas.getContext("2d");
    brush.scale(sharp, sharp);
    this.draw(brush);
  }

  dot(brush, place, radius) {
    brush.beginPath();
    brush.arc(...this.spot(place), radius, 0, 2 * Math.PI);
    brush.fill();
  }

  /** Return 1, 2 or 5 times a power of ten, at most `most`. */
  static roundLength(most) {
    const power = 10 ** Math.floor(Math.log10(most));
    return power * (most / power >= 5 ? 5 : most / power >= 2 ? 2 : 1);
  }

  /** Draw a scale bar of a round length at the lower left, at most a quarter of the width. */
  paintScale(brush, ink) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const meters = PlanView.roundLength(width / 4 / this.scale);
    Object.assign(brush, { strokeStyle: ink, fillStyle: ink, lineWidth: 2, font: "13px system-ui, sans-serif", textAlign: "left", textBaseline: "alphabetic" });
    brush.strokeRect(8, height - 10, meters * this.scale, 0.5);
    brush.fillText(meters >= 1000 ? `${meters / 1000} km` : `${Number(meters.toPrecision(3))} m`, 10, height - 15);
  }

  /** Connect the zoom buttons. */
  takeButtons({ closer, further, all }) {
    closer.addEventListener("click", () => this.zoom(1.6));
    further.addEventListener("click", () => this.zoom(1 / 1.6));
    all.addEventListener("click", () => this.showAll());
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left - this.canvas.clientLeft, event.clientY - box.top - this.canvas.clientTop];
  }

  listen() {
    const { canvas, pointers } = this;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, this.point(event));
      if (pointers.size === 1) this.moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => this.follow(event));
    canvas.addEventListener("pointerup", (event) => {
      pointers.delete(event.pointerId);
      if (this.moved < 5) this.pick(this.point(event), PlanView.REACH);
    });
    canvas.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY / 400), this.point(event));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  follow(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return;
    const now = this.point(event);
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId);
    this.pointers.set(event.pointerId, now);
    this.moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
    if (!others.length) {
      this.pan(now[0] - before[0], now[1] - before[1]);
      return;
    }
    const [[, other]] = others; // with two fingers their distance sets the zoom
    const length = (point) => Math.max(Math.hypot(point[0] - other[0], point[1] - other[1]), 1);
    this.zoom(length(now) / length(before), other);
  }

  key(event) {
    const step = PlanView.STEP;
    const moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    const scales = { "+": 1.4, "=": 1.4, "-": 1 / 1.4 };
    if (moves[event.key]) this.pan(...moves[event.key]);
    else if (scales[event.key]) this.zoom(scales[event.key]);
    else if (event.key === "0") this.showAll();
    else if (event.key === "Enter") this.pick(this.middle, Infinity);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
