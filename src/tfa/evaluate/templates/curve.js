// Precision against recall, and the confidence from which on answers are accepted.
let chart = null;
let points = []; // of the head shown
const slider = byId("threshold");
const place = byId("curve");

/** Both curves over one axis: where one has no point, its line goes on. */
function curveData() {
  points = curveOf(state.run);
  const own = [points, state.beside < 0 ? [] : curveOf(state.beside)];
  const all = own.flatMap((curve, number) => curve.map((point) => ({ ...point, number })));
  all.sort((one, other) => one.recall - other.recall);
  const values = (number) => all.map((point) => (point.number === number ? point.precision : null));
  return [all.map((point) => point.recall), values(0), ...(state.beside < 0 ? [] : [values(1)])];
}

/** The point of the head shown that the threshold means: the last that is still accepted. */
const pointNow = () => points.findLast((point) => point.threshold >= state.threshold);

function drawMarker(drawn) {
  const now = pointNow();
  if (!now) return;
  const brush = drawn.ctx;
  const [x, y] = [drawn.valToPos(now.recall, "x", true), drawn.valToPos(now.precision, "y", true)];
  brush.save();
  brush.fillStyle = colour("accent");
  brush.strokeStyle = colour("card");
  brush.lineWidth = 3;
  brush.setLineDash([]); // the curve beside left its own
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
  const axis = (label) => ({ label, stroke: colour("faint"), grid: { stroke: colour("line") }, ticks: { stroke: colour("line") }, font: "12px system-ui", labelFont: "12px system-ui" });
  const series = (ink, dash) => ({ stroke: colour(ink), width: 2, spanGaps: true, dash, points: { show: false } });
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

/** The slider reaches over all confidences of the head shown. */
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
  if (place.clientWidth !== lastWidth) { // its height follows from what is drawn
    lastWidth = place.clientWidth;
    drawCurve();
  }
}).observe(place);
onScheme(drawCurve);
