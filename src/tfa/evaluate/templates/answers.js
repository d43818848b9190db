// Answers, and the state of the page.
const { queries, runs } = content;
const state = {
  run: content.shown, beside: content.beside, show: "all", text: "", hub: -1,
  threshold: runs[content.shown].threshold, chosen: -1, rank: 0, list: [],
};

/** The answer of a run to a query; null if it was not evaluated. */
function answerOf(run, query) {
  const given = run < 0 ? null : runs[run].answers[query];
  if (!given) return null;
  const [confidence, sure, hits] = given;
  const first = hits.findIndex((hit) => hit[1]);
  return { confidence, sure: Boolean(sure), hits: hits.map(hitOf), right: first === 0, firstRight: first < 0 ? null : first + 1 };
}

function hitOf([image, right, confidence = null, inliers = null, metres = null, lines = null]) {
  return { image, right: Boolean(right), confidence, inliers, metres, lines };
}

const rightOf = (run, query) => Boolean(runs[run].answers[query]?.[2][0]?.[1]);
const confidenceOf = (run, query) => runs[run].answers[query]?.[0] ?? null;
const isEvaluated = (run, query) => Boolean(runs[run].answers[query]);
const accepted = (run, query, threshold) => confidenceOf(run, query) !== null && confidenceOf(run, query) >= threshold;

/** Whether a query is right with one head and wrong with the other. */
function isChanged(query) {
  const { run, beside } = state;
  return beside >= 0 && isEvaluated(run, query) && isEvaluated(beside, query) && rightOf(run, query) !== rightOf(beside, query);
}

const SHOWN = {
  all: () => true,
  wrong: (query) => !rightOf(state.run, query),
  confident: (query) => !rightOf(state.run, query) && accepted(state.run, query, state.threshold),
  right: (query) => rightOf(state.run, query),
  absent: (query) => !queries[query].inMap,
  changed: isChanged,
};

function isNamed(query) {
  const text = state.text.trim().toLowerCase();
  if (!text) return true;
  if (/^#?\d+$/.test(text) && String(queries[query].number) === text.replace("#", "")) return true;
  return `${content.queryNames[query]} ${queries[query].condition}`.toLowerCase().includes(text);
}

const isAnsweredBy = (query) => state.hub < 0 || (!rightOf(state.run, query) && runs[state.run].answers[query][2][0]?.[0] === state.hub);

/** List wrong answers, most confident first, then right answers, least confident first. */
function select() {
  const found = queries.map((_, at) => at).filter((at) => isEvaluated(state.run, at) && SHOWN[state.show](at) && isNamed(at) && isAnsweredBy(at));
  const sureness = (query) => confidenceOf(state.run, query) ?? -Infinity;
  found.sort((one, other) => {
    const [right, otherRight] = [rightOf(state.run, one), rightOf(state.run, other)];
    if (right !== otherRight) return right - otherRight;
    return (right ? 1 : -1) * (sureness(one) - sureness(other)) || one - other;
  });
  state.list = found;
}

/** Count the accepted answers and the right ones among them. */
function acceptance(run, threshold) {
  let [evaluated, taken, right] = [0, 0, 0];
  queries.forEach((_, query) => {
    if (!isEvaluated(run, query)) return;
    evaluated += 1;
    if (!accepted(run, query, threshold)) return;
    taken += 1;
    right += rightOf(run, query);
  });
  return { evaluated, taken, right };
}

/** One point per occurring confidence, highest first; equal ones are accepted together. */
function curveOf(run) {
  const known = queries.map((_, at) => at).filter((at) => confidenceOf(run, at) !== null);
  const evaluated = queries.filter((_, at) => isEvaluated(run, at)).length;
  known.sort((one, other) => confidenceOf(run, other) - confidenceOf(run, one));
  const points = [];
  let right = 0;
  known.forEach((query, at) => {
    right += rightOf(run, query);
    if (at + 1 < known.length && confidenceOf(run, known[at + 1]) === confidenceOf(run, query)) return;
    points.push({ threshold: confidenceOf(run, query), precision: right / (at + 1), recall: right / evaluated });
  });
  return points;
}
