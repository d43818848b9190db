// The report view: advice, outliers and decisions, and plots of the evidence.
import { call } from "./api.js";
import { around, dots, frame, letters, line } from "./charts.js";
import { alertIn, byId, make, makeSvg, number, say, table } from "./dom.js";
import { card, reportCards } from "./report.js";

const LOADING = "Computing the report. After an edit this takes seconds, or minutes for a map of many thousands of images.";
let latest = 0; // number of the last request; results of earlier ones are dropped

/** Show the report, then the evidence. */
export async function showDecisions() {
  latest += 1;
  const mine = latest;
  alertIn("decisions-alert", null);
  const place = byId("decisions-body");
  place.replaceChildren();
  say("decisions-status", LOADING);
  try {
    const report = await call("v1/report");
    if (mine !== latest) return;
    const { evidence } = report;
    const whose = evidence.calibration ? `, calibrated to ${evidence.calibration}` : "";
    place.replaceChildren(
      ...reportCards(report),
      make("div", { class: "two" },
        ...(evidence.candidates?.length // a second-order head has none
          ? [card(`Candidates: support against agreement${whose}`, "tall", ...candidateChart(evidence.candidates))] : []),
        card("Spectrum and shaping", "", ...spectrumChart(evidence.spectrum)),
        card("Original against final similarity", "", ...similarityChart(evidence.similarity))));
  } catch (error) {
    if (mine !== latest) return;
    alertIn("decisions-alert", error);
  }
  say("decisions-status", "");
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / Math.max(values.length, 1);

function candidateChart(candidates) {
  const points = candidates.map((one, at) => ({ ...one, x: one.support, y: mean(one.agreement), letter: String.fromCharCode(65 + (at % 26)) }));
  const chart = frame({
    title: "Support against agreement of each candidate; the table below has the numbers",
    x: { range: around(points.map((point) => point.x), 0.12), label: "support: distinct images reached" },
    y: { range: around(points.flatMap((point) => point.agreement), 0.12), label: "agreement of vocabularies" },
  });
  for (const point of points) {
    const [x, low, high] = [chart.X(point.x), chart.Y(Math.min(...point.agreement)), chart.Y(Math.max(...point.agreement))];
    chart.node.append(makeSvg("path", { class: "reach", d: `M${x} ${low}V${high}` }));
  }
  for (const point of points) {
    const place = { cx: chart.X(point.x), cy: chart.Y(point.y) };
    chart.node.append(makeSvg("circle", { class: point.chosen ? "point chosen-point" : "point", ...place, r: 5 }));
    if (point.chosen) chart.node.append(makeSvg("circle", { class: "ring", ...place, r: 8.5 }));
  }
  letters(chart, points);
  const rows = points.map((point) => ({ cells: [
    `${point.letter}  ${point.name}${point.chosen ? "  ✓ chosen" : ""}`,
    number(point.support, 1), point.agreement.map((value) => number(value, 2)).join(" ")] }));
  return [chart.node,
    make("p", { class: "quiet" }, "Each point is a candidate; its line is the range over pairs of vocabularies. The ring marks the chosen one."),
    table(["Candidate", "Support", "Agreement"], rows, "Candidates")];
}

function spectrumChart(spectrum) {
  const values = (spectrum?.eigenvalues || []).filter((value) => value > 0);
  if (values.length < 2) return [make("p", {}, "This map stores no spectrum.")];
  const first = values[0];
  const plain = values.map((value) => value / first);
  const gamma = typeof spectrum.gamma === "number" ? spectrum.gamma : 0;
  // φ_γ scales a direction by λ^{-γ/2}: its variance λ becomes λ^{1-γ}.
  const shaped = plain.map((value) => value ** (1 - gamma));
  const places = values.map((_, at) => at + 1);
  const low = Math.min(...plain, ...shaped);
  const chart = frame({
    title: "Variance by direction, before and after shaping; described below",
    x: { range: [1, values.length], label: "direction, by decreasing variance" },
    y: { range: [Math.max(low * 0.7, 1e-12), 1.3], label: "variance relative to the first", log: true },
  });
  line(chart, places, plain, "one");
  line(chart, places, shaped, "other");
  const last = Math.min(10, values.length);
  const width = typeof spectrum.participation === "number" ? `, spectral width ${number(spectrum.participation, 1)}` : "";
  return [chart.node, make("p", { class: "quiet" },
    `Solid: original. Dashed: shaped with γ = ${number(gamma)}${width}. `
    + `Direction ${last} has ${number(100 * plain[last - 1], 1)}\u00a0% of the variance of the first, after shaping ${number(100 * shaped[last - 1], 1)}\u00a0%.`)];
}

function similarityChart(similarity) {
  const xs = similarity?.original || [];
  const ys = similarity?.final || [];
  if (!xs.length) return [make("p", {}, "This map stores no similarities.")];
  const chart = frame({
    title: "Original against final similarity of pairs of images; described below",
    x: { range: around(xs), label: "original similarity" },
    y: { range: around(ys), label: "final similarity" },
  });
  dots(chart, xs, ys);
  return [chart.node, make("p", { class: "quiet" },
    `${xs.length} pairs of map images, correlation ${number(correlation(xs, ys), 2)}. With a correlation of 1 the ranking would not change.`)];
}

export function correlation(xs, ys) {
  const [a, b] = [mean(xs), mean(ys)];
  const both = mean(xs.map((x, at) => (x - a) * (ys[at] - b)));
  const spread = Math.sqrt(mean(xs.map((x) => (x - a) ** 2)) * mean(ys.map((y) => (y - b) ** 2)));
  return spread > 0 ? both / spread : 0;
}
