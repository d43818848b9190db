// The camera view: frames of this device's camera as one stream, each answered with a verdict and a position.
import { call, events, formOf } from "./api.js";
import { alertIn, byId, make, say } from "./dom.js";
import { Plan } from "./plan.js";
import { fillVerdict } from "./verdict.js";

const SECOND = 1000; // milliseconds between frames
const LONGEST_SIDE = 960; // pixels of a frame that is sent
const PATH = 600; // positions drawn on the plan

const WHY_NOT = {
  NotAllowedError: "The browser was not allowed to use the camera. Allow it in the address bar, then start again.",
  NotFoundError: "This device has no camera.",
  NotReadableError: "Another program uses the camera. Close it, then start again.",
};

let plan = null;
let stream = null; // MediaStream of the running camera
let path = []; // latest positions, oldest first
let counted = { frames: 0, recognized: 0 };

/** Open the camera and answer its frames until it is stopped. */
async function start() {
  alertIn("camera-alert", null);
  if (!navigator.mediaDevices) {
    alertIn("camera-alert", new Error("Browsers allow a camera only on https:// pages and on localhost. Serve this page with TLS."));
    return;
  }
  byId("camera-start").disabled = true;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" }, audio: false });
  } catch (error) {
    alertIn("camera-alert", new Error(WHY_NOT[error.name] || `The camera cannot be used: ${error.message}`));
    byId("camera-start").disabled = false;
    return;
  }
  const video = byId("camera-video");
  video.srcObject = stream;
  video.hidden = false;
  await video.play();
  byId("camera-stop").disabled = false;
  byId("camera-name").disabled = true;
  counted = { frames: 0, recognized: 0 };
  follow(stream);
}

function stop() {
  stream?.getTracks().forEach((track) => track.stop());
  stream = null;
  byId("camera-video").srcObject = null;
  byId("camera-start").disabled = false;
  byId("camera-stop").disabled = true;
  byId("camera-name").disabled = false;
}

/** Send a frame a second. A frame is sent after the answer to the last one; none while the page is in the background. */
async function follow(mine) {
  while (stream === mine) {
    const started = performance.now();
    if (!document.hidden) await step(mine);
    const pause = Math.max(SECOND - (performance.now() - started), 0);
    await new Promise((done) => { setTimeout(done, pause); });
  }
}

async function step(mine) {
  const form = formOf("image", [await frame()], { camera: byId("camera-name").value.trim(), sequence: true, k: 1 });
  try {
    const answer = await call("v1/query", { method: "POST", form });
    if (stream === mine) show(answer);
    alertIn("camera-alert", null);
  } catch (error) {
    alertIn("camera-alert", error);
    if (error.status && error.status !== 503 && error.status !== 429) stop(); // a later frame would be refused, too
  }
}

/** Return the current frame as a JPEG file. */
async function frame() {
  const video = byId("camera-video");
  const scale = Math.min(1, LONGEST_SIDE / Math.max(video.videoWidth, video.videoHeight));
  const canvas = make("canvas", { width: Math.round(scale * video.videoWidth), height: Math.round(scale * video.videoHeight) });
  canvas.getContext("2d").drawImage(video, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise((done) => { canvas.toBlob(done, "image/jpeg", 0.9); });
  return new File([blob], "frame.jpg", { type: "image/jpeg" });
}

function show(answer) {
  counted.frames += 1;
  counted.recognized += answer.sure ? 1 : 0;
  fillVerdict(byId("camera-verdict"), answer);
  say("camera-status", `${counted.recognized} of ${counted.frames} frames recognized.`);
  if (answer.place) path = [...path, answer.place].slice(-PATH);
  plan.show(answer.hits, answer.place ?? null, path);
}

/** Load the positions of the map; the camera keeps running. */
async function showPlan() {
  try {
    plan.take(await call("v1/positions"));
    plan.show([], null, path);
  } catch (error) {
    alertIn("camera-alert", error);
  }
}

export function startCamera() {
  plan = new Plan(byId("camera-plan"));
  byId("camera-name").value = `page-${crypto.getRandomValues(new Uint16Array(1))[0]}`;
  byId("camera-start").addEventListener("click", start);
  byId("camera-stop").addEventListener("click", stop);
  events.addEventListener("map-chosen", () => {
    stop();
    path = [];
  });
  return { show: showPlan };
}
