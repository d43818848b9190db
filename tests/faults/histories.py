"""Random histories of a map, compared after each operation with a plain model of what the map must hold.

    python -m tests.faults.histories --operations 200000 --seed 1 --where folder|memory|postgres|lance|milvus|qdrant

A history is a list of operations on one map by two editors: additions, removals, refits, calibrations, merges,
rollbacks, queries, kills inside an edit, and edits by two processes at once. The seed of the run and the number of a
history determine its operations: `--seed 1 --history 7` repeats one that failed.

The model knows which photos the map holds, under which ids, which calibrations there are and which one is active. It
also remembers every score: as long as a head exists, the score of a photo for another one may not change.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.history_parts import (
    CALIBRATIONS,
    DIMS,
    FEW,
    FIRST,
    KINDS,
    LENGTH,
    MANY,
    MINUTE,
    ROUNDING,
    SESSIONS,
    SETTLING,
    Clock,
    Killed,
    Life,
    Model,
    Operation,
    Seen,
    World,
    attempt,
    open_map,
    perform,
    raise_killed,
    run_child,
)
from tests.faults.table import Row
from tfa.errors import BadCalibration, TfaError, UnknownImage
from tfa.maps import PlaceMap
from tfa.maps.folder.writer import MAP_FILE_NAME
from tfa.maps.store import edits
from tfa.maps.store.republish import copy_map
from tfa.maps.store.rows import SpaceRows, read_ranks
from tfa.report.prunable import find_prunable
from tfa.search import store as stores
from tfa.search.reduced import Moments

# --- one history ---------------------------------------------------------------------------------------------------


@dataclass
class History:
    """Operations on one map, drawn from a seed."""

    world: World
    url: str  # a folder, or a URL
    rng: random.Random
    kind: str = "second-order"
    counts: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)
    scores: dict[tuple[Any, ...], float] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)

    @classmethod
    def begin(cls, world: World, place: str, seed: int, number: int) -> History:
        """Begin the history of that number; `place` is a folder, or the URL of a store without a map's name."""
        rng, name = random.Random(f"{seed}-{number}"), f"town{seed}x{number}"
        in_store = "://" in place
        url = f"{place}/{name}" if in_store else str(Path(place) / f"{name}.tfa")
        return cls(world, url, rng, rng.choice(["second-order", "no-patches"] if in_store else list(KINDS)))

    def __post_init__(self) -> None:
        self._marks = 0
        self.in_store = "://" in self.url
        self.in_process = self.url.startswith(("memory:", "qdrant:"))  # one process has the store
        built = open_map(str(self.world.folder / f"{self.kind}.tfa"))
        if self.in_store:
            built.publish(self.url, dims=DIMS).close()
        else:
            shutil.copytree(self.world.folder / f"{self.kind}.tfa", self.url)
        self.model = self.first_model(self.kind)
        self.editors = [open_map(self.url) for _ in range(2)]
        self.revision = Seen.of(self.editors[0]).revision
        self.untidy = False  # a killed process left files, until the next edit
        named = set() if self.in_store else {entry["name"] for entry in self.editors[0].state.files}
        self.named = self.revision, named, named  # revision, files of the header before, files of this header

    def first_model(self, kind: str) -> Model:
        photos = {number: (name, None) for number, name in enumerate(self.world.names[:FIRST])}
        return Model(photos, self.mark(), frozenset(photos), FIRST, collection=self.mark())

    def mark(self) -> int:
        self._marks += 1
        return self._marks

    # --- drawing ---------------------------------------------------------------------------------------------------

    def draw(self) -> str:
        weights = {"query": 4, "add": 6, "remove": 6, "calibrate": 1, "activate": 2, "drop": 1, "refuse": 2,
                   "reopen": 1, "kill": 2, "race": 1}  # fmt: skip
        weights |= {"rollback": 2, "rebuild": 0.3, "copy": 0.3} if self.in_store else {"refit": 1, "merge": 0.5}
        weights |= {} if self.in_store else {"prune": 0.5}
        return self.rng.choices(list(weights), list(weights.values()))[0]

    def draw_edit(self, verbs: Sequence[str] | None = None) -> Operation:
        """Draw an edit with its arguments."""
        every = ["add", "add", "remove", "remove", "calibrate", "activate", "drop"]
        every += ["rollback", "rebuild"] if self.in_store else ["refit", "merge"]
        while True:
            operation = self.arguments(self.rng.choice(verbs or every))
            if operation is not None:
                return operation

    def arguments(self, verb: str, model: Model | None = None) -> Operation | None:
        """Draw the arguments of an edit; None if it is not possible now, or to a map of that model."""
        model, rng = model or self.model, self.rng
        if verb == "add":
            busy = model.names | {name for name, _ in model.maybe.values()}
            free = [name for name in self.world.names if name not in busy]
            if not free or len(model.photos) >= MANY:
                return None
            return "add", rng.sample(free, min(len(free), rng.randint(1, 3))), rng.choice(SESSIONS)
        if verb == "remove":
            there = sorted(model.photos)
            most = min(len(there) - FEW, 3)
            return None if most < 1 else ("remove", sorted(rng.sample(there, rng.randint(1, most))))
        if verb == "calibrate":
            return "calibrate", rng.choice(CALIBRATIONS), self.kind == "dual" or rng.random() < 0.5
        if verb == "activate":
            return "activate", rng.choice([None, *(name for name, _ in model.calibrations)])
        if verb == "drop":
            return None if not model.calibrations else ("drop", rng.choice(model.calibrations)[0])
        if verb == "rollback":
            return None if model.previous is None else ("rollback",)
        if verb == "rebuild":
            return "rebuild", rng.choice(["second-order", "no-patches"])
        return (verb,)

    # --- what an edit makes of the model ------------------------------------------------------------------------

    def publish(self, **changes: Any) -> Model:
        """Return the model after a publication in a store, which a rollback undoes."""
        kept = replace(self.model, previous=None) if self.in_store else None
        return replace(self.model, **{"collection": self.mark(), "previous": kept, **changes})

    def outcomes(self, operation: Operation, ids: Sequence[int] = ()) -> list[Model]:
        """Return the models after each step of an edit, the complete one last."""
        model, (verb, *args) = self.model, operation
        if verb == "add":
            new = {number: (name, args[1]) for number, name in zip(ids, args[0], strict=True)}
            return [replace(model, photos={**model.photos, **new}, next_id=max([model.next_id - 1, *ids]) + 1)]
        if verb == "remove":
            return [replace(model, photos={key: one for key, one in model.photos.items() if key not in args[0]})]
        if verb == "calibrate":
            others = [one for one in model.calibrations if one[0] != args[0]]
            return [self.publish(calibrations=(*others, (args[0], self.mark())), active=args[0])]
        if verb == "activate":
            return [model if model.active == (args[0] or "none") else self.publish(active=args[0] or "none")]
        if verb == "drop":
            rest = tuple(one for one in model.calibrations if one[0] != args[0])
            if model.active != args[0]:
                return [self.publish(calibrations=rest, collection=model.collection)]
            switched = self.publish(active="none")
            if not self.in_store:
                return [replace(switched, calibrations=rest)]
            dropped = replace(switched, calibrations=rest, previous=replace(switched, previous=None))
            return [switched, dropped]
        if verb == "refit":
            return [replace(model, fit=self.mark(), fitted=frozenset(model.photos), calibrations=(), active="none")]
        if verb == "rollback":
            assert model.previous is not None
            back, kept = model.previous, replace(model, previous=None)
            if back.collection == model.collection:
                back = replace(back, photos=model.photos, fitted=model.fitted)
            return [replace(back, previous=kept, next_id=max(back.next_id, model.next_id))]
        if verb == "rebuild":
            return [replace(self.first_model(args[0]), previous=replace(model, previous=None))]
        assert verb == "merge", verb
        other = Seen.of(open_map(str(self.world.folder / "other.tfa")))
        stem = Path(self.url).stem
        photos = {name: session or stem for name, session in model.photos.values()}
        for name, session in other.photos.values():
            photos.setdefault(name, session or "other")
        numbered = dict(enumerate(photos.items()))
        return [Model(numbered, self.mark(), frozenset(numbered), len(numbered))]

    # --- comparing -----------------------------------------------------------------------------------------------

    def check(self, what: str) -> Seen:
        """Compare the map with the model, as a new process and every editor that is up to date see it."""
        fresh = open_map(self.url)
        seen = Seen.of(fresh)
        self.resolve(fresh, seen)
        differs = seen.differs(self.model)
        assert not differs, f"after {what}: {differs}"
        for editor in self.editors:
            if self.in_store or editor.state.revision == seen.revision:
                differs = Seen.of(editor).differs(self.model)
                assert not differs, f"after {what}, an editor differs: {differs}"
        assert seen.revision >= self.revision, f"after {what}: revision {seen.revision} follows {self.revision}"
        self.revision = seen.revision
        if self.in_store:
            self.check_store(fresh)
        else:
            self.check_folder(fresh)
        fresh.close()
        return seen

    def check_folder(self, fresh: PlaceMap) -> None:
        state, folder = fresh.state, Path(self.url)
        named = {entry["name"] for entry in state.files}
        there = {file.name for file in folder.iterdir()}
        assert named <= there
        if state.revision != self.named[0]:
            self.named = state.revision, self.named[2], named
        left = {file for file in there if MAP_FILE_NAME.match(file)} - named - self.named[1]
        assert not left or self.untidy, f"neither header names {sorted(left)}"
        ids = [record.id for record in state.images]
        assert sorted(ids) == sorted(set(ids))
        assert state.removed <= set(ids)
        assert not ids or max(ids) < state.next_id
        if self.rng.random() < 0.05:
            PlaceMap.load(self.url, checksum=True)

    def check_store(self, fresh: PlaceMap) -> None:
        view = fresh.storage.versions.now(fresh=True)  # type: ignore[attr-defined]
        about, photos = view.header, self.model.photos
        placed = sum("@" in name for name, _ in photos.values())
        fitted = len(self.model.fitted & set(photos))
        assert (about.placed, about.fitted) == (placed, fitted), f"{(about.placed, about.fitted)} {(placed, fitted)}"
        assert view.active.moments.count == len(photos)
        assert self.matches_previous(self.model), "a rollback would restore other images"
        if not about.pending:
            for version in view.versions.values():  # the previous one, too, if it has the same images
                moments, scorer = Moments.empty(DIMS), version.head.stored.scorer
                for page in version.collection.pages():
                    rows = SpaceRows.of_bytes(page.full, read_ranks(scorer))
                    expected = version.reduction.of_images(*rows.compiled(scorer))
                    np.testing.assert_allclose(page.vectors, expected, atol=1e-4, err_msg=version.head.name)
                    moments += Moments.of(page.vectors)
                assert moments.count == about.count, f"{moments.count} rows, the header counts {about.count}"
                np.testing.assert_allclose(version.moments.second, moments.second, atol=1e-4)

    def resolve(self, fresh: PlaceMap, seen: Seen) -> None:
        """Decide about interrupted additions that another editor has finished: all of one is there, or nothing."""
        model = self.model
        if not model.maybe:
            return
        pending = fresh.storage.versions.now(fresh=True).header.pending.values()  # type: ignore[attr-defined]
        unfinished = {key for one in pending if one.kind == "add" for key in range(*one.ids)}
        there = {key: one for key, one in model.maybe.items() if key in seen.photos and key not in unfinished}
        maybe = {key: one for key, one in model.maybe.items() if key in unfinished}
        self.model = replace(model, photos={**model.photos, **there}, maybe=maybe)

    def query(self) -> None:
        """Query a photo in an editor or a new process."""
        asked = self.rng.choice([*self.editors, None])
        if asked is None:
            asked = open_map(self.url)
            self.compare_answers(asked)
            asked.close()
        else:
            self.refresh(asked)
            self.compare_answers(asked)

    def compare_answers(self, asked: PlaceMap) -> None:
        """Query a photo; the answers are the model's images, with the scores and inliers that they always had."""
        model, rng = self.model, self.rng
        name = rng.choice(sorted(self.world.names))
        heads = ["none", *(one for one, _ in model.calibrations)]
        head = model.active if self.in_store else rng.choice(heads)
        session = rng.choice([None, *sorted({one for _, one in model.photos.values()} - {None})])  # type: ignore[type-var]
        only = {} if session is None else {"sessions": (session,)}
        [answer] = asked.query_tokens(
            self.world.tokens[name], k=99, calibration=head, rerank=False, min_confidence=0.0, **only
        )
        expected = {key: one for key, one in model.photos.items() if session in (None, one[1])}
        hits = [hit for hit in answer if hit.id not in model.maybe]
        assert {hit.id: Path(hit.image).stem for hit in hits} == {key: one for key, (one, _) in expected.items()}
        assert len(hits) == len(expected)
        for hit in hits:
            key = (*model.head(head), name, hit.id, expected[hit.id][0])
            before = self.scores.setdefault(key, hit.score)
            is_same = math.isclose(before, hit.score, rel_tol=1e-5, abs_tol=1e-6)  # a score is a sum of terms up to 1
            assert is_same, f"score of {key} was {before}, is {hit.score}"
        itself = {key for key, (one, _) in expected.items() if self.world.place(one) == self.world.place(name)}
        if itself & model.fitted and head == "none":  # rows of the fitted images are complete
            best = max(hit.score for hit in hits if hit.id in itself)
            assert best > hits[0].score - ROUNDING, f"{name} is {itself} with {best}, the best hit is {hits[0]}"
        if asked.state.compact is not None or (self.in_store and asked.storage.view.patches is not None):  # type: ignore[attr-defined]
            [verified] = asked.query_tokens(self.world.tokens[name], k=99, rerank=True, min_confidence=0.0)
            assert {hit.id for hit in verified} - set(model.maybe) == set(model.photos)
            for hit in [one for one in verified if one.id in model.photos and one.inliers is not None]:
                key = (model.fit, "inliers", name, hit.id, model.photos[hit.id][0])
                before = self.scores.setdefault(key, hit.inliers)
                assert before == hit.inliers, f"inliers of {key} were {before}, are {hit.inliers}"

    # --- editors -------------------------------------------------------------------------------------------------

    def refresh(self, editor: PlaceMap) -> None:
        """Let an editor in a folder load what others wrote."""
        if not self.in_store:
            editor.storage = editor.storage.refresh()

    def reopen(self) -> None:
        for number, editor in enumerate(self.editors):
            editor.close()
            self.editors[number] = open_map(self.url)

    def edit(self, operation: Operation) -> None:
        """Let one editor do an edit. One that is behind in a folder is refused first, at times."""
        editor = self.rng.choice(self.editors)
        behind = not self.in_store and editor.state.revision != self.revision
        if behind and operation[0] not in ("merge", "activate") and self.rng.random() < 0.5:
            with contextlib.suppress(UnknownImage, BadCalibration):  # an editor that is behind does not know them
                outcome, done = attempt(self.world, editor, operation, self.url)
                assert outcome == "refused" or done == [], f"an editor at {editor.state.revision} did {operation}"
            self.counts["refused: behind"] += 1
            self.check("a refusal")
        self.refresh(editor)
        before = editor.state.next_id
        if operation[0] in SETTLING and self.model.maybe:
            edits.settle_edits(editor.storage.versions, patience=2 * MINUTE)  # type: ignore[attr-defined]
            self.check("waiting for an edit")
        result = perform(self.world, editor, operation, self.url)
        self.untidy &= editor.state.revision == self.revision  # nothing was written
        ids = result if operation[0] == "add" else ()
        assert all(one >= before for one in ids), f"ids {ids} were used before {before}"
        self.model = self.outcomes(operation, ids)[-1]
        if operation[0] == "merge":
            self.reopen()

    def settle(self) -> None:
        """Let a minute pass, and an editor finish what killed ones left."""
        if not self.in_store:
            return
        for _ in range(4):
            self.clock.offset += MINUTE
            view = edits.settle_edits(self.editors[0].storage.versions, patience=0.01)  # type: ignore[attr-defined]
            if not view.header.pending:
                break
        assert not view.header.pending, "an interrupted edit is never finished"
        self.check("a minute")

    def prune(self) -> None:
        editor = self.rng.choice(self.editors)
        self.refresh(editor)
        found = find_prunable(editor, None)
        gone = [one.id for one in found]
        assert set(gone) <= set(self.model.photos)
        assert {one.duplicate_of for one in found} <= set(self.model.photos) - set(gone)
        if gone:
            self.edit(("remove", gone))

    def copy(self) -> None:
        """Copy the map in its store; the copy holds the same."""
        target = f"{self.url}copy"
        copy_map(self.editors[0].storage, target)  # type: ignore[arg-type]
        self.check("a copy")  # which finishes interrupted additions first
        copied = open_map(target)
        differs = Seen.of(copied).differs(self.model)
        copied.close()
        assert not differs, f"the copy differs: {differs}"

    def refuse(self) -> None:
        """Edits that are refused change nothing."""
        editor = self.rng.choice(self.editors)
        self.refresh(editor)
        way = self.rng.choice(["remove", "activate", "drop", "calibrate"])
        with expect_refusal():
            if self.model.maybe:
                editor.remove([self.rng.choice(sorted(self.model.maybe))])
            elif way == "remove":
                editor.remove([min(self.model.photos, default=0), 10**6])
            elif way == "activate":
                editor.activate("nowhere")
            elif way == "drop":
                editor.drop_calibration("nowhere")
            else:
                editor.calibrate([self.world.path(name) for name in self.model.names])

    # --- several processes ---------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill an editor inside an edit; the map is as before, or as after one of its steps."""
        operation = self.draw_edit()
        if operation[0] in SETTLING:
            self.settle()  # which these do themselves, with more outcomes than the model has
        life = self.rng.randint(0, 12 if self.rng.random() < 0.7 else 60)
        self.log[-1] += f" {life} {operation}"
        before = Seen.of(open_map(self.url))
        self.untidy = True
        ended = self.kill_here(operation, life) if self.in_process else self.kill_child(operation, life)
        self.counts[f"kill: {operation[0]}"] += ended
        ids = range(before.next_id, before.next_id + len(operation[1])) if operation[0] == "add" else ()
        fresh = open_map(self.url)
        seen = Seen.of(fresh)
        if operation[0] != "rebuild":  # whose ids name other photos
            self.resolve(fresh, seen)
        steps = [self.model, *self.outcomes(operation, ids)]
        if self.in_store and operation[0] == "add" and ended:
            pending = fresh.storage.versions.now(fresh=True).header.pending  # type: ignore[attr-defined]
            if any(one.ids == (ids[0], ids[-1] + 1) for one in pending.values()):
                unfinished = {key: steps[1].photos[key] for key in ids}
                steps[0] = replace(self.model, maybe={**self.model.maybe, **unfinished})
        possible = steps if ended else steps[-1:]
        matching = [one for one in possible if not seen.differs(one)]
        told = "; ".join(seen.differs(one) for one in possible)
        assert matching, f"after a kill in {operation}: {told}"
        self.model = matching[-1] if not ended else matching[0]
        if ended and len(matching) > 1:
            self.model = self.decide(matching, before, seen)
        if self.in_store:
            self.model = replace(self.model, next_id=max(self.model.next_id, seen.next_id))
            self.reopen()
        fresh.close()
        if self.rng.random() < 0.5:
            self.check(f"a kill in {operation}")
            self.settle()
        if not self.in_store and self.rng.random() < 0.5:
            self.reopen()

    def decide(self, matching: Sequence[Model], before: Seen, seen: Seen) -> Model:
        """Tell models apart that differ only in marks: the edit happened if the revision grew."""
        return matching[-1] if seen.revision > before.revision else matching[0]

    def kill_here(self, operation: Operation, life: int) -> bool:
        ending = Life(life, raise_killed)
        try:
            with ending.lived():
                perform(self.world, open_map(self.url), operation, self.url)
        except Killed:
            return True
        ending.over = False
        return False

    def kill_child(self, operation: Operation, life: int) -> bool:
        with self.child(operation, life) as (process, pipe):
            pipe.send("go")
            process.join()
            if process.exitcode == -signal.SIGKILL:
                return True
            outcome, told = pipe.recv()
            assert (process.exitcode, outcome) == (0, "done"), told
            return False

    @contextlib.contextmanager
    def child(self, operation: Operation, life: int | None) -> Iterator[tuple[Any, Any]]:
        """Start a process that has loaded the map and waits for a word."""
        pipe, theirs = processes().Pipe()
        args = (theirs, str(self.world.folder), self.url, operation, life, self.clock.offset)
        process = processes().Process(target=run_child, args=args)
        process.start()
        theirs.close()
        try:
            assert pipe.recv() == "ready"
            yield process, pipe
        finally:
            pipe.close()
            process.join()
            process.close()

    def race(self) -> None:
        """Two editors edit at once. All edits that were acknowledged are in the map."""
        self.settle()
        self.reopen()
        first, second, after = self.draw_race()
        self.log[-1] += f" {first} {second}"
        within = self.in_process and first[0] in ("add", "remove", "rebuild") and self.rng.random() < 0.5
        self.clock.real = not within
        if within:
            results = self.race_within(first, second)
        elif self.in_process:
            results = self.race_threads(first, second)
        else:
            with self.child(second, None) as (_, pipe):
                pipe.send("go")
                mine = attempt(self.world, self.editors[0], first, self.url)
                results = [mine, pipe.recv()]
        self.clock.real = False
        assert {said for said, _ in results} <= {"done", "refused"}, results
        done = [(one, told) for one, (said, told) in zip((first, second), results, strict=True) if said == "done"]
        edits_only = self.in_store and first[0] in ("add", "remove")
        assert len(done) in ({2} if edits_only else {1, 2} if self.in_store else {1}), f"{len(done)} done: {results}"
        ids = [one for operation, told in done if operation[0] == "add" for one in told]
        assert len(set(ids)) == len(ids), f"ids were given twice: {ids}"
        assert all(one >= min(self.model.next_id, after.next_id) for one in ids)
        before, possible = self.model, list[Model]()
        for order in (done, done[::-1]):  # a rollback tells them apart
            self.model = before
            for operation, told in order:
                self.model = self.outcomes(operation, told if operation[0] == "add" else ())[-1]
            possible.append(self.model)
        self.model = next((one for one in possible if self.matches_previous(one)), possible[0])

    def draw_race(self) -> tuple[Operation, Operation, Model]:
        """Draw two edits that change the map, and the model after the first one."""
        verbs = ["add", "remove", "calibrate", "activate"]
        verbs += ["rebuild", "rollback"] if self.in_store else ["drop", "refit"]
        while True:
            first = self.draw_edit(verbs)
            if first[0] == "activate" and (first[1] or "none") == self.model.active:
                continue
            after = self.outcomes(first, range(-len(first[1]), 0) if first[0] == "add" else ())[-1]
            for verb in self.rng.sample(["add", "remove"], 2):
                second = self.arguments(verb, self.share(after))
                if second is not None:
                    return first, second, after

    def share(self, after: Model) -> Model:
        """Return a model of images that are there before and after an edit, and of photos that are in neither."""
        before = self.model
        photos = {key: one for key, one in before.photos.items() if key in after.photos}
        every = [*before.photos.values(), *before.maybe.values(), *after.photos.values(), *after.maybe.values()]
        return replace(before, photos=photos, maybe=dict(enumerate(every)))

    def matches_previous(self, model: Model) -> bool:
        """Return True if a rollback would restore the model's previous photos."""
        if not self.in_store or model.previous is None or model.previous.collection == model.collection:
            return True
        view = self.editors[0].storage.versions.now(fresh=True)  # type: ignore[attr-defined]
        before = view.header.before
        pages = self.editors[0].storage.store.open(before.collection).pages()  # type: ignore[attr-defined]
        rows = {one for page in pages for one in page.ids.tolist()}
        return rows - set(model.previous.maybe) - before.removing == set(model.previous.photos)

    def race_threads(self, first: Operation, second: Operation) -> list[tuple[str, Any]]:
        results: dict[int, tuple[str, Any]] = {}
        together = threading.Barrier(2)

        def run(number: int, operation: Operation) -> None:
            together.wait()
            try:
                results[number] = attempt(self.world, self.editors[number], operation, self.url)
            except Exception:
                results[number] = "failed", traceback.format_exc()

        threads = [threading.Thread(target=run, args=one) for one in enumerate((first, second))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [results[0], results[1]]

    def race_within(self, first: Operation, second: Operation) -> list[tuple[str, Any]]:
        """Do the first edit before or after a drawn call of the store by the second one."""
        results: list[tuple[str, Any]] = []
        begun = False

        def interrupt() -> None:
            nonlocal begun
            if not begun:
                begun = True
                results.append(attempt(self.world, self.editors[0], first, self.url))

        ending = Life(self.rng.randint(0, 12), interrupt)
        with ending.lived():
            last = attempt(self.world, open_map(self.url), second, self.url)
        interrupt()
        self.counts[f"race within: {first[0]}"] += 1
        return [*results, last]

    # --- running -------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Do one operation and compare."""
        verb = self.draw()
        operation: Operation | None = (verb,)
        others: dict[str, Callable[[], None]] = {
            "query": self.query, "refuse": self.refuse, "reopen": self.reopen, "kill": self.kill, "race": self.race,
            "prune": self.prune, "copy": self.copy,
        }  # fmt: skip
        if verb not in others:
            operation = self.arguments(verb)
            if operation is None:
                return self.step()
        self.log.append(str(operation))
        if verb in SETTLING and self.rng.random() < 0.5:
            self.settle()
        if verb in others:
            others[verb]()
        else:
            self.edit(operation)
        self.check(self.log[-1])
        if verb != "query":
            self.query()
        self.counts[verb] += 1
        return None

    def run(self, operations: int) -> None:
        with self.world.cached(), self.clock.installed():
            for _ in range(operations):
                self.step()

    def close(self) -> None:
        for editor in self.editors:
            editor.close()


@contextlib.contextmanager
def expect_refusal() -> Iterator[None]:
    try:
        yield
    except TfaError:
        return
    raise AssertionError("the edit was not refused")


_PROCESSES: list[Any] = []


def processes() -> Any:
    """Return a context of processes that have everything imported and run no thread."""
    if not _PROCESSES:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.faults.histories"])
        _PROCESSES.append(context)
    return _PROCESSES[0]


# --- many histories ------------------------------------------------------------------------------------------------


@dataclass
class Campaign:
    """Histories in one kind of place. `place` is a folder, or the URL of a store without a map's name."""

    world: World
    place: str
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def run(
        self,
        operations: int,
        length: int = LENGTH,
        only: int | None = None,
        seconds: float = math.inf,
        each: Callable[[History], object] = lambda _: None,
    ) -> None:
        """Run histories until there were that many operations, or that many seconds have passed."""
        number, started = 0 if only is None else only, time.monotonic()
        left = operations
        while left > 0 and time.monotonic() - started < seconds:
            each(self.run_one(number, min(length, max(left, 1))))
            left -= length
            number += 1
            if number % 10 == 0:
                print(f"{self.place}: {self.done:,} operations", file=sys.stderr, flush=True)
            if only is not None:
                break

    @property
    def done(self) -> int:
        return sum(self.counts[verb] for verb in VERBS)

    def run_one(self, number: int, length: int) -> History:
        with self.world.cached():
            history = History.begin(self.world, self.place, self.seed, number)
        try:
            history.run(length)
        except (Exception, Killed):
            steps, trace = "\n  ".join(history.log[-12:]), traceback.format_exc()
            self.failures.append(f"--seed {self.seed} --history {number}, step {len(history.log)}:\n  {steps}\n{trace}")
            print(f"FAILED {self.failures[-1]}", flush=True)
        finally:
            history.close()
            self.counts += history.counts
            if not history.in_store:
                shutil.rmtree(history.url, ignore_errors=True)
        return history


VERBS = ("query", "add", "remove", "calibrate", "activate", "drop", "refuse", "reopen", "kill", "race", "rollback",
         "rebuild", "copy", "refit", "merge", "prune")  # fmt: skip


@contextlib.contextmanager
def open_place(where: str, folder: Path) -> Iterator[str]:
    """Yield a folder, or the URL of a store."""
    if where == "folder":
        (folder / "maps").mkdir()
        yield str(folder / "maps")
    elif where == "memory":
        stores._BUILT_IN["memory"] = "tests.search.memory_store:MemoryStore.connect"
        yield f"memory://{folder}"
    elif where in ("postgres", "milvus"):
        from studies.scale.local_servers import MilvusServer, PostgresServer

        server = PostgresServer() if where == "postgres" else MilvusServer(folder / "milvus")
        server.start()
        try:
            yield server.url
        finally:
            server.remove()
    else:
        yield f"{where}://{folder}/store"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.histories", description="Random histories of a map.")
    parser.add_argument("--where", default="folder", help="folder, memory, postgres, lance, milvus or qdrant")
    parser.add_argument("--operations", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--history", type=int, help="run only the history of that number")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after the first history beyond that time")
    parser.add_argument("--out", type=Path, help="folder for the counts, which `python -m tests.faults.table` reads")
    chosen = parser.parse_args(arguments)
    print(f"histories: --where {chosen.where} --operations {chosen.operations} --seed {chosen.seed}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tfa-histories-") as temporary:
        world = World.make(Path(temporary))
        with open_place(chosen.where, Path(temporary)) as place:
            campaign = Campaign(world, place, chosen.seed)
            campaign.run(chosen.operations, only=chosen.history, seconds=chosen.seconds)
    print(dict(sorted(campaign.counts.items())))
    seconds = time.monotonic() - started
    print(f"{campaign.done:,} operations, {len(campaign.failures)} failures, {seconds:.0f} s, seed {chosen.seed}")
    if chosen.out is not None:
        row = Row(f"operations: {chosen.where}", campaign.done, len(campaign.failures), seconds)
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / f"{chosen.where}.jsonl").write_text(json.dumps(asdict(row)) + "\n", "utf-8")
    return 1 if campaign.failures else 0


if __name__ == "__main__":
    from tests.faults.histories import main as run

    __spec__.name = "tests.faults.__main__"  # child processes then do not run this file again
    sys.exit(run())
