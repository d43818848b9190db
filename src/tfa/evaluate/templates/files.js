// Save the listed queries as CSV, or as GeoJSON with a line from each query to its best answer.
const COLUMNS = ["number", "query", "head", "right", "confidence", "sure", "answer", "distance_m", "inliers", "first_right", "in_map", "true_image", "condition"];

function rowsOf() {
  return state.list.flatMap((query) => [state.run, state.beside].filter((run) => run >= 0 && isEvaluated(run, query)).map((run) => {
    const answer = answerOf(run, query);
    const best = answer.hits[0];
    const own = queries[query];
    return {
      number: own.number, query: content.queryNames[query], head: runs[run].name, right: answer.right,
      confidence: answer.confidence, sure: answer.sure, answer: best ? content.images.names[best.image] : null,
      distance_m: best?.metres ?? null, inliers: best?.inliers ?? null, first_right: answer.firstRight, in_map: own.inMap,
      true_image: own.true < 0 ? null : content.images.names[own.true], condition: own.condition,
      ends: [own.degrees, best ? content.images.degrees[best.image] : null],
    };
  }));
}

function csv() {
  const cell = (value) => {
    const formula = typeof value === "string" && /^[=+\-@\t\r]/.test(value); // a spreadsheet would run it
    const text = value === null ? "" : formula ? `'${value}` : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [COLUMNS, ...rowsOf().map((row) => COLUMNS.map((name) => row[name]))].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

function geojson() {
  const features = rowsOf().map(({ ends, ...properties }) => {
    const known = ends.filter(Boolean);
    const geometry = known.length === 2 ? { type: "LineString", coordinates: known }
      : known.length === 1 ? { type: "Point", coordinates: known[0] } : null;
    return { type: "Feature", geometry, properties };
  });
  const plane = content.plan === "plane" ? { note: "coordinates are meters in a plane, not longitude and latitude" } : {};
  return JSON.stringify({ type: "FeatureCollection", ...plane, features }, null, 1);
}

function save(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

const saveCsv = () => save("queries.csv", csv(), "text/csv");
const saveGeojson = () => save("queries.geojson", geojson(), "application/geo+json");
byId("save-csv").addEventListener("click", saveCsv);
byId("save-geojson").addEventListener("click", saveGeojson);
