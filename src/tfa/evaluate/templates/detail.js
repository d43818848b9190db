// The selected query, its answers of one or two heads, and a positive.

function verdictWords(query, answer) {
  if (!answer) return "not evaluated";
  if (!answer.hits.length) return "no answer";
  if (answer.right) return "right";
  return queries[query].inMap ? "wrong" : "wrong: the place is not in the map";
}

function hitWords(hit) {
  return [
    hit.right ? "right" : "wrong",
    hit.confidence === null ? null : `confidence ${hit.confidence.toFixed(2)}`,
    hit.metres === null ? null : inMetres(hit.metres),
    hit.inliers === null ? null : counted(hit.inliers, "inlier", "inliers"),
  ].filter(Boolean);
}

function showDetail() {
  const place = byId("detail");
  const query = state.chosen;
  if (query < 0) {
    place.replaceChildren(make("p", {}, "Select a query in the list."));
    return;
  }
  const shown = [state.run, state.beside].filter((run, at, all) => run >= 0 && all.indexOf(run) === at);
  const own = queries[query];
  place.replaceChildren(
    make("h2", { id: "detail-title" }, `${own.number} · ${content.queryNames[query]}`),
    own.condition ? make("p", { class: "small" }, own.condition) : "",
    make("div", { class: "heads" }, ...shown.map((run) => headCard(run, query))),
  );
}

function headCard(run, query) {
  const answer = answerOf(run, query);
  const card = make("div", { class: "head" });
  const words = verdictWords(query, answer);
  const confidence = answer && answer.confidence !== null ? `, confidence ${answer.confidence.toFixed(2)}${answer.sure ? " (sure)" : ""}` : "";
  card.append(make("h3", {}, `${runs[run].name}: `, make("span", { class: answer?.right ? "right" : "wrong" }, words), confidence));
  if (!answer || !answer.hits.length) return card;
  const found = answer.firstRight === null ? `no right image in the top ${answer.hits.length}` : `the first right image has rank ${answer.firstRight}`;
  if (!answer.right) card.append(make("p", { class: "small" }, `${found[0].toUpperCase()}${found.slice(1)}.`));
  const rank = Math.min(state.rank, answer.hits.length - 1);
  card.append(pairOf(run, query, answer.hits[rank], rank), answerStrip(answer, rank));
  return card;
}

/** Query, answer and positive side by side. */
function pairOf(run, query, hit, rank) {
  const left = picture(photos.queries[query], `Query ${content.queryNames[query]}`);
  const right = picture(photos.images[hit.image], `Answer ${rank + 1}`);
  const truth = queries[query].true;
  const pair = make("div", { class: "pair" },
    make("figure", {}, left, make("figcaption", {}, "query")),
    make("figure", { class: hit.right ? "framed-right" : "framed-wrong" }, right,
      make("figcaption", {}, `answer ${rank + 1}: ${content.images.names[hit.image]} · ${hitWords(hit).join(" · ")}`)),
    truth < 0
      ? make("figure", {}, make("div", { class: "gone" }, "not in the map"), make("figcaption", {}, "ground truth"))
      : make("figure", {}, picture(photos.images[truth], "Ground truth"), make("figcaption", {}, `ground truth: ${content.images.names[truth]}`)));
  if (byId("lines").checked && hit.lines && runs[run].grid && left.tagName === "IMG" && right.tagName === "IMG") linesOver(pair, left, right, runs[run].grid, hit.lines);
  return pair;
}

function answerStrip(answer, rank) {
  const tile = (hit, at) => make("button", {
    type: "button", "aria-pressed": String(at === rank), "data-rank": at + 1,
    click: () => { state.rank = at; showDetail(); byId("detail").querySelector(`[data-rank="${at + 1}"]`)?.focus(); },
  },
    picture(photos.images[hit.image], "", true),
    make("span", {}, `${at + 1} `, make("b", { class: hit.right ? "right" : "wrong" }, hit.right ? "✓ right" : "✗ wrong")),
    ...hitWords(hit).slice(1).map((words) => make("span", { class: "number" }, words.replace("confidence ", "conf. "))));
  return make("div", { class: "answers" }, ...answer.hits.map(tile));
}
