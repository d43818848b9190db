// The plan: images as dots, each listed query joined with its best answer. To be moved, scaled and picked from.
const REACH = 14; // pixels from a query within which a click chooses it
const KINDS = {
  globe: "North is up.",
  plane: "y is up, x to the right.",
  order: "Positions are not known: images (above) and queries (below) stand in the order of their files.",
};
const view = { scale: 1, x: 0, y: 0, fitted: false };
const plan = byId("plan");
const pointers = new Map();
let moved = 0;

const spot = ([x, y]) => [plan.clientWidth / 2 + (x - view.x) * view.scale, plan.clientHeight / 2 - (y - view.y) * view.scale];

function fitPlan() {
  const places = [...content.images.places, ...queries.map((query) => query.place)].filter(Boolean);
  const range = (axis) => places.reduce(([low, high], place) => [Math.min(low, place[axis]), Math.max(high, place[axis])], [Infinity, -Infinity]);
  const [[left, right], [low, high]] = [range(0), range(1)];
  view.x = (left + right) / 2;
  view.y = (low + high) / 2;
  const room = (length, span) => (length - 56) / Math.max(span, 1e-6);
  view.scale = Math.min(room(plan.clientWidth, right - left), room(plan.clientHeight, high - low), 1e5);
  view.fitted = true;
}

function zoomPlan(factor, at = [plan.clientWidth / 2, plan.clientHeight / 2]) {
  const [dx, dy] = [at[0] - plan.clientWidth / 2, at[1] - plan.clientHeight / 2];
  view.x += (dx / view.scale) * (1 - 1 / factor);
  view.y -= (dy / view.scale) * (1 - 1 / factor);
  view.scale *= factor;
  paintPlan();
}

function panPlan(dx, dy) {
  view.x -= dx / view.scale;
  view.y += dy / view.scale;
  paintPlan();
}

/** The listed query whose dot lies nearest to a point, if any is within reach. */
function nearestQuery(x, y, reach) {
  const away = (query) => Math.hypot(...spot(queries[query].place).map((value, axis) => value - [x, y][axis]));
  const placed = state.list.filter((query) => queries[query].place);
  const best = placed.reduce((one, other) => (one < 0 || away(other) < away(one) ? other : one), -1);
  return best >= 0 && away(best) <= reach ? best : -1;
}

function paintPlan() {
  const [width, height] = [plan.clientWidth, plan.clientHeight];
  if (width < 40) return;
  if (!view.fitted) fitPlan();
  const sharp = window.devicePixelRatio || 1;
  plan.width = Math.round(width * sharp);
  plan.height = Math.round(height * sharp);
  const brush = plan.getContext("2d");
  brush.scale(sharp, sharp);
  brush.fillStyle = colour("dot");
  brush.globalAlpha = 0.55;
  for (const place of content.images.places) if (place) dot(brush, spot(place), 2.2);
  brush.globalAlpha = 1;
  for (const query of [...state.list].reverse()) if (query !== state.chosen) paintAnswer(brush, query, false);
  if (state.chosen >= 0) paintAnswer(brush, state.chosen, true);
  paintScale(brush, width, height);
  sayPlan();
}

function dot(brush, [x, y], radius) {
  brush.beginPath();
  brush.arc(x, y, radius, 0, 2 * Math.PI);
  brush.fill();
}

/** A line from the query to its best answer: solid and green if right, dashed and red if wrong. */
function paintAnswer(brush, query, chosen) {
  const { place } = queries[query];
  const answer = answerOf(state.run, query);
  if (!place || !answer) return;
  const ink = colour(answer.right ? "good" : "bad");
  brush.strokeStyle = ink;
  brush.fillStyle = ink;
  brush.lineWidth = chosen ? 3 : 1.2;
  brush.setLineDash(answer.right ? [] : [6, 4]);
  const there = answer.hits.length ? content.images.places[answer.hits[0].image] : null;
  if (there) {
    brush.beginPath();
    brush.moveTo(...spot(place));
    brush.lineTo(...spot(there));
    brush.stroke();
  }
  brush.setLineDash([]);
  dot(brush, spot(place), chosen ? 7 : 3.4);
  if (!chosen) return;
  brush.strokeStyle = colour("ink");
  brush.lineWidth = 2;
  brush.stroke();
}

function paintScale(brush, width, height) {
  if (content.plan === "order") return;
  const most = width / 4 / view.scale;
  const power = 10 ** Math.floor(Math.log10(most));
  const metres = power * (most / power >= 5 ? 5 : most / power >= 2 ? 2 : 1);
  brush.strokeStyle = brush.fillStyle = colour("faint");
  brush.lineWidth = 2;
  brush.strokeRect(8, height - 10, metres * view.scale, 0.5);
  brush.font = "13px system-ui, sans-serif";
  brush.fillText(metres >= 1000 ? `${metres / 1000} km` : `${Number(metres.toPrecision(3))} m`, 10, height - 15);
}

/** The same in words: for those who do not see the drawing. */
function sayPlan() {
  const right = state.list.filter((query) => rightOf(state.run, query)).length;
  const words = `${counted(state.list.length, "listed query", "listed queries")} joined with their best answers: ${right} right (solid), ` +
    `${state.list.length - right} wrong (dashed). ${KINDS[content.plan]} Drag to move, turn the wheel to scale, click on a query to choose it.`;
  byId("plan-words").textContent = words;
  plan.setAttribute("aria-label", `Plan: ${words}`);
}

function planPoint(event) {
  const box = plan.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

plan.addEventListener("pointerdown", (event) => {
  plan.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, planPoint(event));
  if (pointers.size === 1) moved = 0;
});
plan.addEventListener("pointermove", (event) => {
  const before = pointers.get(event.pointerId);
  if (!before) return;
  const now = planPoint(event);
  const others = [...pointers].filter(([id]) => id !== event.pointerId);
  pointers.set(event.pointerId, now);
  moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
  if (!others.length) return void panPlan(now[0] - before[0], now[1] - before[1]);
  const [[, other]] = others; // two fingers: their distance scales
  const length = (point) => Math.max(Math.hypot(point[0] - other[0], point[1] - other[1]), 1);
  zoomPlan(length(now) / length(before), other);
});
plan.addEventListener("pointerup", (event) => {
  pointers.delete(event.pointerId);
  const picked = moved < 5 ? nearestQuery(...planPoint(event), REACH) : -1;
  if (picked >= 0) choose(picked);
});
plan.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
plan.addEventListener("wheel", (event) => {
  event.preventDefault();
  zoomPlan(Math.exp(-event.deltaY / 400), planPoint(event));
}, { passive: false });
plan.addEventListener("keydown", (event) => {
  const step = 40;
  const moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
  const scales = { "+": 1.4, "=": 1.4, "-": 1 / 1.4 };
  if (moves[event.key]) panPlan(...moves[event.key]);
  else if (scales[event.key]) zoomPlan(scales[event.key]);
  else if (event.key === "0") showWholePlan();
  else if (event.key === "Enter") {
    const picked = nearestQuery(plan.clientWidth / 2, plan.clientHeight / 2, Infinity);
    if (picked >= 0) choose(picked);
  } else return;
  event.preventDefault();
  event.stopPropagation();
});

function showWholePlan() {
  view.fitted = false;
  paintPlan();
}

byId("plan-in").addEventListener("click", () => zoomPlan(1.6));
byId("plan-out").addEventListener("click", () => zoomPlan(1 / 1.6));
byId("plan-all").addEventListener("click", showWholePlan);
new ResizeObserver(paintPlan).observe(plan);
onScheme(paintPlan);
