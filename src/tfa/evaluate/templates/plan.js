// The plan: map images as dots, and a line from each listed query to its best answer.
const KINDS = {
  globe: "North is up.",
  plane: "y is up, x to the right.",
  order: "No positions: map images (top) and queries (bottom) in file order.",
};
const plan = byId("plan");
const planView = new PlanView(plan, {
  places: () => [...content.images.places, ...queries.map((query) => query.place)],
  draw: drawPlan,
  pick: (at, reach) => {
    const picked = planView.nearest(state.list.map((query) => queries[query].place), at, reach);
    if (picked >= 0) choose(state.list[picked]);
  },
});
const paintPlan = () => planView.paint();

function drawPlan(brush) {
  brush.fillStyle = color("dot");
  brush.globalAlpha = 0.55;
  for (const place of content.images.places) if (place) planView.dot(brush, place, 2.2);
  brush.globalAlpha = 1;
  for (const query of [...state.list].reverse()) if (query !== state.chosen) paintAnswer(brush, query, false);
  if (state.chosen >= 0) paintAnswer(brush, state.chosen, true);
  if (content.plan !== "order") planView.paintScale(brush, color("faint"));
  sayPlan();
}

/** Draw a line from a query to its best answer: solid green if right, dashed red if wrong. */
function paintAnswer(brush, query, chosen) {
  const { place } = queries[query];
  const answer = answerOf(state.run, query);
  if (!place || !answer) return;
  const ink = color(answer.right ? "good" : "bad");
  brush.strokeStyle = ink;
  brush.fillStyle = ink;
  brush.lineWidth = chosen ? 3 : 1.2;
  brush.setLineDash(answer.right ? [] : [6, 4]);
  const there = answer.hits.length ? content.images.places[answer.hits[0].image] : null;
  if (there) {
    brush.beginPath();
    brush.moveTo(...planView.spot(place));
    brush.lineTo(...planView.spot(there));
    brush.stroke();
  }
  brush.setLineDash([]);
  planView.dot(brush, place, chosen ? 7 : 3.4);
  if (!chosen) return;
  brush.strokeStyle = color("ink");
  brush.lineWidth = 2;
  brush.stroke();
}

/** Describe the plan in words, for screen readers. */
function sayPlan() {
  const right = state.list.filter((query) => rightOf(state.run, query)).length;
  const words = `${counted(state.list.length, "listed query", "listed queries")} joined with their best answers: ${right} right (solid), ` +
    `${state.list.length - right} wrong (dashed). ${KINDS[content.plan]} Drag to move, scroll or pinch to zoom, click a query to select it.`;
  byId("plan-words").textContent = words;
  plan.setAttribute("aria-label", `Plan: ${words}`);
}

planView.takeButtons({ closer: byId("plan-in"), further: byId("plan-out"), all: byId("plan-all") });
