"""Track one camera in a map: scores adapted to earlier photos, reranking, and a motion filter for frames of a drive.

The map itself does not change. If others edit it, the tracker follows the edits.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfa.core.files import BadFile
from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.errors import BadMap, BadSpec
from tfa.maps.answer import (
    AnsweringMap,
    answer_photos,
    make_answer,
    make_hits,
    make_where,
    name_calibration,
    pair_photos,
    resolve_candidates,
)
from tfa.maps.confidence import (
    ALTERNATIVES,
    CAMERA_LOST,
    FEW_MAP_IMAGES,
    LOST_FOR,
    SURE_FRAME,
    DatabaseScores,
    DomainShiftMonitor,
    Located,
    blame_flaw,
    collect_answers,
    judge_answer,
    locate_frame,
    reject_outside,
    shrink_confidence,
)
from tfa.maps.state import DATABASE, MapState, NamedHead
from tfa.maps.stored_head import make_partial_scorer
from tfa.method.scorer import Scorer
from tfa.online.adaptation import Adaptation, AdaptedScorer, DescribedPhoto, digest_head
from tfa.online.follow import Follower, StreamFrame
from tfa.online.sequence_filter import SequenceSpec
from tfa.photos.images import NOTHING_SHOWN, Photo, PhotosLike, expand_photos
from tfa.search.gallery import DAMAGED, check_k
from tfa.types import NO_HITS, UNREADABLE, Answer, Answers, Hit, QueryOptions
from tfa.verification.reranking import UNVERIFIED

if TYPE_CHECKING:
    from tfa.maps.map import Map


MOST_LAG = 100  # frames


class Tracker:
    """A tracker of one camera, made by `PlaceMap.follow`.

    Example:
        >>> tracker = town.follow()
        >>> for frame in frames:
        ...     answer = tracker.step(frame)
    """

    def __init__(
        self,
        place_map: Map,
        options: QueryOptions,
        *,
        online: bool = True,
        sequence: bool = True,
        spec: SequenceSpec | None = None,
        lag: int = 0,
        adaptation: Adaptation | None = None,
    ) -> None:
        check_k(options.k)
        if check_k(lag, "lag", 0) > MOST_LAG:
            raise BadSpec(f"lag={lag} is out of range: must be 0 to {MOST_LAG} frames")
        if lag and not sequence:
            raise BadSpec("a lag needs frames of one drive; use sequence=True or remove lag")
        if make_where(options) is not None:
            raise BadSpec("a tracker searches the whole map; remove sessions and region")
        self.place_map, self.options, self.spec = place_map, options, spec or SequenceSpec()
        place_map.check(options)  # before photos are read
        self.calibration = place_map.state.checked(options.calibration).name
        self.online, self.sequence, self.lag = online, sequence, lag
        self._waiting: deque[Answer | _Waiting] = deque()
        self._begin(adaptation)

    def _begin(self, adaptation: Adaptation | None) -> None:
        """Start on the current map."""
        self._state, scorer = self.place_map.state, self._scorer()
        self._digest, self._ids = digest_head(scorer), self._ids_of_images()
        adapted = AdaptedScorer(scorer, self._ids, adaptation, columns=self.place_map.rows, adapts=self.online)
        self._follower = Follower(adapted, spec=self.spec, lag=self.lag)
        self._image_scores = DatabaseScores(scorer, self.place_map.rows)
        # An adapting head is centered on the camera's photos after the first few.
        self.shift_monitor = (
            DomainShiftMonitor(centered=True) if self.online else DomainShiftMonitor.for_head(self._head)
        )
        self._follow_drive()

    def _follow_drive(self) -> None:
        """Start a new drive, or none if photos are not frames."""
        self._waiting.clear()
        self._lost_frames = 0  # since the camera was last located
        motion = self.place_map.motion(self.spec.reach) if self.sequence else None
        self._follower.follow_along(motion)
        self._lost: float | None = None if motion is None else 1 - self.spec.p_recover

    # --- answers ---------------------------------------------------------------------------------------------------

    def step(self, photo: Photo | Tokens, flaw: str | None = None) -> Answer:
        """Answer the next photo of the camera.

        Args:
            photo: A photo as for `PlaceMap.query`, or its tokens.
            flaw: What is wrong with the pixels of a photo given as tokens (`tfa.photos.images.find_flaw`).

        Returns:
            The answer, adapted to earlier photos; `error` is set if the photo cannot be read. With a lag, the answer
            to the photo that many frames earlier; the first `lag` answers are empty.
        """
        if isinstance(photo, Tokens):
            answer = self.skip("", flaw=flaw) if flaw in NOTHING_SHOWN else self.answer("", photo, flaw)
        else:
            answer = next(self.steps([photo]), None)
        return Answer(reason="later frames are needed to answer this one") if answer is None else answer

    def steps(self, photos: Sequence[Photo]) -> Iterator[Answer]:
        """Answer the next photos in order, encoding them in batches. With a lag, the last answers are held back."""
        for named, tokens in self.place_map.encode_batches(photos):
            row = 0
            for name, error, flaw in named:
                if error is not None or flaw in NOTHING_SHOWN or tokens is None:
                    answer = self.skip(name, error, flaw)
                else:
                    answer = self.answer(name, tokens.select([row]), flaw)
                    row += 1
                if answer is not None:
                    yield answer

    def finish(self) -> Iterator[Answer]:
        """Answer the photos that a lag held back."""
        while self._waiting:
            yield self._release()

    def answer(self, name: str, tokens: Tokens, flaw: str | None = None) -> Answer | None:
        """Answer the next photo by tokens of the map's encoder; None while a lag holds its answer back.

        `flaw` says what is wrong with its pixels (`tfa.photos.images.find_flaw`).
        """
        self._follow_map()
        place_map, options = self.place_map, self.options
        scorer = self._follower.scorer.scorer
        photo = DescribedPhoto.of(scorer, tokens, place_map.state.compact)
        if not len(place_map):
            return self._hold_back(self._empty_answer(name))
        candidates = resolve_candidates(options, place_map.state, tokens)
        pairs = None
        if candidates:
            rows = place_map.rows if scorer.duplicates is None else scorer.duplicates[place_map.rows]
            pairs = pair_photos(place_map.state.compact, tokens, rows)
            patches = self._follower.scorer.center_patches(photo)
            pairs = pairs if pairs is None or patches is None else pairs.at(patches)
        frame = self._follower.step(photo, pairs, candidates, max(options.k, ALTERNATIVES))
        vectors = self._follower.scorer.vectors
        assert vectors is not None
        self.shift_monitor.observe(scorer, [vectors], frame.ranked, place_map.rows)
        self._lost = None if frame.belief is None else frame.belief.lost
        calibration = name_calibration(self.calibration)
        answering = AnsweringMap(place_map.images, self._image_scores, place_map.reach, calibration)
        monitor = self.shift_monitor
        outside = monitor.is_outside if frame.belief is None else monitor.has_evidence and not monitor.stands_out
        return self._hold_back(_Waiting(name, frame, answering, monitor.stands_out, outside, flaw))

    def _hold_back(self, answer: Answer | _Waiting) -> Answer | None:
        """Return the answer that is due, if any."""
        self._waiting.append(answer)
        return self._release() if len(self._waiting) > self.lag else None

    def _release(self) -> Answer:
        """Return the oldest answer, by all frames since."""
        first = self._waiting.popleft()
        return self._answer_frame(first, len(self._waiting)) if isinstance(first, _Waiting) else first

    def _answer_frame(self, waiting: _Waiting, later: int) -> Answer:
        frame = self._follower.look_back(waiting.frame, later)
        answer = self._make_answer(frame, waiting.answering, waiting.stands_out)
        answer = blame_flaw(reject_outside(answer) if waiting.outside else answer, waiting.flaw)
        return dataclasses.replace(answer, query=waiting.name, adaptation_photos=frame.adaptation_photos)

    def _make_answer(self, frame: StreamFrame, answering: AnsweringMap, stands_out: bool) -> Answer:
        k, images, belief, ranked = self.options.k, answering.images, frame.belief, frame.ranked
        if belief is None:
            [alone] = answer_photos(answering, ranked, [frame.scores], k)
            return alone
        if not np.isfinite(frame.scores).all():
            raise BadMap(DAMAGED)
        hits: list[Hit] = []
        located: Located = (None, CAMERA_LOST)
        self._lost_frames = self._lost_frames + 1 if belief.is_lost else 0
        shrunk = shrink_confidence(len(images))
        if not belief.is_lost:
            inliers = dict(zip(ranked.indices[0].tolist(), ranked.inliers[0].tolist(), strict=True))
            best = np.argsort(-belief.rank, kind="stable")[:k]
            # A later hit between two likely images can have more mass around it, but is not a better answer.
            trust = np.minimum.accumulate(belief.mass[best]) * shrunk
            sure = set(best[trust >= SURE_FRAME].tolist()) if stands_out and len(images) >= FEW_MAP_IMAGES else set()
            hits = make_hits(images, best, frame.scores, trust, inliers, sure)
            located = locate_frame(belief.places, images, answering.reach)
        confidence, frames = belief.confidence * shrunk, self._lost_frames
        answer = make_answer(hits, located, confidence=confidence, calibration=answering.calibration)
        reason = f"{LOST_FOR} {frames} frame{'' if frames == 1 else 's'}" if frames else answer.reason
        answer = dataclasses.replace(answer, lost=belief.lost, reason=reason)
        return judge_answer(answer, len(images), reranked=bool((ranked.inliers != UNVERIFIED).any()))

    def skip(self, name: str, error: str | None = None, flaw: str | None = None) -> Answer | None:
        """Pass over the next photo, which cannot be read or shows nothing; the filter expects motion meanwhile."""
        self._follow_map()
        belief = self._follower.skip()
        self._lost = None if belief is None else belief.lost
        return self._hold_back(self._empty_answer(name, flaw or UNREADABLE, error))

    def _empty_answer(self, name: str, reason: str = NO_HITS, error: str | None = None) -> Answer:
        counted = self._follower.scorer.counted
        return Answer(query=name, reason=reason, error=error, lost=self._lost, adaptation_photos=counted)

    # --- changes of the map ----------------------------------------------------------------------------------------

    def rebind(self, place_map: Map, options: QueryOptions, *, sequence: bool) -> None:
        """Use a newer state of the map and other options. Changing `sequence` ends the current drive."""
        self.place_map, self.options = place_map, dataclasses.replace(options, calibration=self.calibration)
        if sequence != self.sequence:
            self.sequence = False
            self._follow_drive()
        self._follow_map()
        if sequence != self.sequence:
            self.sequence = sequence
            self._follow_drive()

    @property
    def _head(self) -> NamedHead:
        return self.place_map.state.chosen(self.calibration)

    def _scorer(self) -> Scorer:
        return choose_adapting_scorer(self.place_map.state, self._head) if self.online else self._head.stored.scorer

    def _ids_of_images(self) -> np.ndarray:
        return np.array([image.id for image in self.place_map.images], np.int64)

    def _follow_map(self) -> None:
        """Follow edits of the map: known images keep their state; another head resets the tracker."""
        if self.place_map.state is self._state:
            return
        # Frames before the edit are answered by the map that they were compared with.
        ended = list(self.finish())
        scorer, ids, before = self._scorer(), self._ids_of_images(), self._ids
        if digest_head(scorer) != self._digest:
            self._begin(None)
            self._waiting.extend(ended)
            return
        if self._follower.filter is not None and not np.array_equal(ids, before):
            self._follower.filter.follow_edit(self.place_map.motion(self.spec.reach), before, ids)
        self._follower.scorer.set_images(scorer, ids, self.place_map.rows)
        self._image_scores = DatabaseScores(scorer, self.place_map.rows)
        self._state, self._ids = self.place_map.state, ids
        self._waiting.extend(ended)

    # --- state -----------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget all photos."""
        self._begin(None)

    @property
    def adaptation(self) -> Adaptation:
        """Adaptation to the photos so far."""
        return self._follower.scorer.adaptation

    @property
    def state(self) -> dict[str, Any]:
        """Options and adaptation as JSON."""
        facts = {"calibration": self.calibration, "online": self.online, "sequence": self.sequence}
        counted = self._follower.scorer.counted
        return {**facts, "lost": self._lost, "adaptation_photos": counted, **self.adaptation.to_dict()}

    def save(self, path: str | Path) -> None:
        """Save the adaptation to a file, without the camera's position."""
        about = {"head": self._digest, "calibration": self.calibration}
        self.adaptation.save(Path(path), about)

    def load(self, path: str | Path) -> None:
        """Resume with a saved adaptation. Raises BadFile if it belongs to another head."""
        adaptation, about = Adaptation.load(Path(path))
        if (about.get("head"), about.get("calibration")) != (self._digest, self.calibration):
            raise BadFile(f"{path} belongs to another head than {self.calibration!r} of this map; delete it")
        self._begin(adaptation)


@dataclasses.dataclass(frozen=True)
class _Waiting:
    """A frame whose answer a lag holds back, with the map as it was."""

    name: str
    frame: StreamFrame
    answering: AnsweringMap
    stands_out: bool  # see `DomainShiftMonitor`
    outside: bool  # whether the last photos match no image better than chance
    flaw: str | None


def choose_adapting_scorer(state: MapState, head: NamedHead) -> Scorer:
    """Choose the scorer that photos adapt.

    The uncalibrated head of a second-order map is replaced by the partly whitened product, which gains most from
    centering. Calibrations and other heads are adapted themselves.
    """
    if state.spaces is None or head.name != DATABASE:
        return head.stored.scorer
    return make_partial_scorer(state.spaces, head.stored.scorer.duplicates)


def query_sequence(place_map: Map, frames: PhotosLike, progress: bool | Progress | None = None, **how: Any) -> Answers:
    """Answer photos in the order they were taken; `how` is as for `PlaceMap.follow`.

    An answer has no hits if being lost is likelier than the best place, or if its confidence is below the options'
    limit. An unreadable frame gets an answer with `error` set, and the tracker continues.
    """
    tracker, answers, photos = place_map.follow(**how), list[Answer](), expand_photos(frames)
    with as_progress(progress).task("querying", len(photos), "photos") as task:
        for answer in chain(tracker.steps(photos), tracker.finish()):
            answers.append(answer.withhold(tracker.options))
            task.advance()
    shift = tracker.shift_monitor
    return collect_answers(answers, shift.warning(place_map.called), outside=shift.is_outside)
