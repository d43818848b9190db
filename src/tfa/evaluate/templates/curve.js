// Precision against recall, and the minimum confidence.
let chart = null;
let points = []; // points of the shown head
const slider = byId("threshold");
const place = byId("curve");

/** Both curves on one axis; lines span the points of the other curve. */
function curveData() {
  points = curveOf(state.run);
  const own = [points, state.beside < 0 ? [] : curveOf(state.beside)];
  const all = own.flatMap((curve, number) => curve.map((point) => ({ ...point, number })));
  all.sort((one, other) => one.recall - other.recall);
  const values = (number) => all.map((point) => (point.number === number ? point.precision : null));
  return [all.map((point) => point.recall), values(0), ...(state.beside < 0 ? [] : [values(1)])];
}

/** The point at the threshold: the last accepted one of the shown head. */
const pointNow = () => points.findLast((point) => point.threshold >= state.threshold);

function drawMarker(drawn) {
  const now = pointNow();
  if (!now) return;
  const brush = drawn.ctx;
  const [x, y] = [drawn.valToPos(now.recall, "x", true), drawn.valToPos(now.precision, "y", true)];
  brush.save();
  brush.fillStyle = color("accent");
  brush.strokeStyle = color("card");
  brush.lineWidth = 3;
  brush.setLineDash([]); // reset the other curve's dash
  brush.beginPath();
  brush.arc(x, y, 8 * (window.devicePixelRatio || 1), 0, 2 * Math.PI);
  brush.fill();
  brush.stroke();
  brush.restore();
}

function drawCurve() {
  chart?.destroy();
  const width = place.clientWidth;
  if (width < 80) return;
  const axis = (label) => ({ label, stroke: color("faint"), grid: { stroke: color("line") }, ticks: { stroke: color("line") }, font: "12px system-ui", labelFont: "12px system-ui" });
  const series = (ink, dash) => ({ stroke: color(ink), width: 2, spanGaps: true, dash, points: { show: false } });
  const options = {
    width, height: Math.min(340, Math.max(width * 0.62, 220)), legend: { show: false }, padding: [14, 16, 0, 0],
    scales: { x: { time: false, range: [0, 1] }, y: { range: [0, 1.02] } },
    axes: [axis("recall"), axis("precision")],
    series: [{}, series("accent"), ...(state.beside < 0 ? [] : [series("other", [6, 4])])],
    cursor: { drag: { x: false, y: false }, points: { show: false } },
    hooks: { draw: [drawMarker] },
  };
  chart = new uPlot(options, curveData(), place);
  const pull = (event) => {
    if (!event.buttons || !points.length) return;
    const recall = chart.posToVal(event.clientX - chart.over.getBoundingClientRect().left, "x");
    const away = (point) => Math.abs(point.recall - recall);
    setThreshold(points.reduce((one, other) => (away(other) < away(one) ? other : one)).threshold);
  };
  chart.over.addEventListener("pointerdown", pull);
  chart.over.addEventListener("pointermove", pull);
  const beside = state.beside < 0 ? "" : `, ${runs[state.beside].name} (dashed) for comparison`;
  byId("curve-words").textContent = `${runs[state.run].name}${beside}. Drag the disc, move the slider or press [ and ]. ` +
    `Recall is over all evaluated queries, precision over accepted ones. Confidence is a ${runs[state.run].kind}.`;
}

/** Set the slider to the range of the shown head's confidences. */
function setSlider() {
  const probability = runs[state.run].kind === "probability";
  points = curveOf(state.run);
  slider.min = probability || !points.length ? 0 : Math.floor(points.at(-1).threshold);
  slider.max = probability || !points.length ? 1 : Math.ceil(points[0].threshold);
  slider.step = probability ? 0.01 : 0.05;
}

function setThreshold(value) {
  state.threshold = Math.min(Math.max(value, Number(slider.min)), Number(slider.max));
  slider.value = state.threshold;
  byId("threshold-value").textContent = state.threshold.toFixed(2);
  slider.setAttribute("aria-valuetext", state.threshold.toFixed(2));
  const { evaluated, taken, right } = acceptance(state.run, state.threshold);
  byId("threshold-counts").textContent = `${taken} of ${evaluated} accepted: ${right} right, ${taken - right} wrong; ` +
    `precision ${percent(right, taken)}, recall ${percent(right, evaluated)}`;
  chart?.redraw(false);
  if (state.show === "confident") showList();
  sayCounts();
}

slider.addEventListener("input", () => setThreshold(Number(slider.value)));
let lastWidth = 0;
new ResizeObserver(() => {
  if (place.clientWidth !== lastWidth) { // the height follows from the drawing
    lastWidth = place.clientWidth;
    drawCurve();
  }
}).observe(place);
onScheme(drawCurve);
