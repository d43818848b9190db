"""A map in a store, served: every replica of the service reads and edits the same one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tfa.core.progress import Progress
from tfa.core.tokens import Tokens
from tfa.errors import BadMap, TfaError
from tfa.maps import PlaceMap
from tfa.maps.store import StoreStorage
from tfa.photos.find_positions import read_photo_position
from tfa.service.edits import NewPhoto, encoded_photos
from tfa.service.metrics import Metrics
from tfa.service.photo_files import file_of
from tfa.service.problems import Refused
from tfa.service.served import Served
from tfa.service.settings import ServiceSettings
from tfa.service.shared_encoder import SharedEncoder
from tfa.types import CalibrationReport, EditReport, EncoderOptions, ImageRecord, MapInfo, QueryOptions, RerankSpec

_T = TypeVar("_T")
_FOLDER = "photos"  # of uploads: documents NAME/photos/DIGEST


class LiveStoreMap(Served):
    """The store's map, looked at again by itself: what another replica edits is seen within a second."""

    def __init__(
        self, store_map: PlaceMap, encoder: SharedEncoder, settings: ServiceSettings, metrics: Metrics
    ) -> None:
        assert isinstance(store_map.storage, StoreStorage)
        self.storage = store_map.storage
        self.map = PlaceMap(self.storage, encoder, EncoderOptions(cache=store_map.cache))
        self._model = self.storage.view.header.encoder["fingerprint"]  # opened before it is promised
        super().__init__(self.storage.name, encoder, settings, metrics)

    @property
    def current_map(self) -> PlaceMap:
        if self.storage.view.header.encoder["fingerprint"] != self._model:
            raise BadMap(f"{self.name} was built again with another encoder; start the service again")
        return self.map

    @property
    def count(self) -> int:
        return self.storage.versions.last.header.count

    @property
    def revision(self) -> int:
        return self.storage.versions.last.header.revision

    @property
    def path_name(self) -> str:
        return self.name

    @property
    def trouble(self) -> str | None:
        try:
            self.current_map  # noqa: B018  # looks at the header
        except TfaError as error:
            return error.public
        return None

    def prepare(self) -> None:
        self.map.prepare()

    def check(self, question: QueryOptions) -> None:
        if question.candidates is not None:
            RerankSpec(candidates=question.candidates)  # refuses what is out of range; the rest is asked of the store

    def no_cameras(self) -> Refused:
        sentence = "needs the scores of all images, and a store gives the best; query without a camera"
        return Refused(409, f"{self.name} is in a store and remembers no cameras: adapting to a camera {sentence}")

    def info(self) -> MapInfo:
        return self.map.info()

    def images(self, offset: int, limit: int, name_filter: str) -> tuple[int, list[ImageRecord]]:
        name_filter, shown, matching = name_filter.casefold(), list[ImageRecord](), 0
        for record in self.map.records():
            if name_filter and name_filter not in Path(record.path).name.casefold():
                continue
            if offset <= matching < offset + limit:
                shown.append(record)
            matching += 1
            if not name_filter and matching >= offset + limit:
                return len(self.map), shown
        return matching, shown

    def record(self, image_id: int) -> ImageRecord | None:
        return self.storage.record(image_id)

    def placed(self) -> list[ImageRecord]:
        return [record for record in self.map.records() if record.position is not None]

    def photo(self, record: ImageRecord) -> bytes:
        content = self.storage.store.read(self._key(record.digest))
        return content if content is not None else file_of(record, None)

    def _key(self, digest: str) -> str:
        return f"{self.name}/{_FOLDER}/{digest}"

    def evidence_map(self) -> tuple[object, PlaceMap]:
        return self.storage.view.content, self.map.sample()

    def explain(self, tokens: Tokens, image_id: int, calibration: str | None) -> dict[str, Any]:
        raise Refused(501, f"matches are not explained for {self.name}: it is in a store, which keeps no tokens")

    # --- edits --------------------------------------------------------------------------------------------------

    def _edit(self, kind: str, change: Callable[[Any], _T]) -> tuple[_T, int]:
        before = self.storage.view.content
        result = change(self.map)
        if self.storage.view.content != before:
            self._metrics.edits.labels(self.name, kind).inc()
        return result, self.storage.view.header.revision

    def add(self, photos: Sequence[NewPhoto], session: str | None = None) -> Future[tuple[EditReport, int]]:
        return self.edit("add", partial(self._add, photos, session=session))

    def _add(self, photos: Sequence[NewPhoto], store_map: PlaceMap, session: str | None) -> EditReport:
        fresh: dict[str, NewPhoto] = {}
        skipped: list[tuple[str, str]] = []
        digests = [hashlib.sha256(photo.content).hexdigest() for photo in photos]
        known = self.storage.find_digests(digests)
        for digest, photo in zip(digests, photos, strict=True):
            if digest in known:
                skipped.append((photo.name, f"the map already holds this photo as image {known[digest]}"))
            elif digest in fresh:
                skipped.append((photo.name, f"it is the same photo as {fresh[digest].name}"))
            else:
                fresh[digest] = photo
        if not fresh:
            return EditReport(added=[], removed=[], skipped=skipped, notes=[])
        tokens = encoded_photos([photo.image for photo in fresh.values()], store_map.encoder)
        records = []
        for digest, photo in fresh.items():
            self.storage.store.put(self._key(digest), photo.content)
            place = photo.position or read_photo_position(photo.content, photo.name)
            records.append(
                ImageRecord(
                    id=0,
                    path=f"{_FOLDER}/{digest[:16]}/{photo.name}",
                    digest=digest,
                    fitted=False,
                    position=place,
                    session=session,
                )
            )
        report = store_map.add_records(tokens, records)
        return EditReport(added=report.added, removed=[], skipped=skipped, notes=report.notes)

    def calibrate(
        self, files: Sequence[Path], name: str, score: bool | None, progress: Progress
    ) -> tuple[CalibrationReport, dict[str, Any], int]:
        options = EncoderOptions(batch_size=1, skip_bad=True, cache=self.map.cache)
        apart = PlaceMap(self.storage, self.encoder, options)
        before = dict(apart.state.database.decisions)
        report = apart.calibrate(files, name, score=score, progress=progress)
        self._metrics.edits.labels(self.name, "calibrate").inc()
        self.map.prepare()  # which looks at the header
        return report, before, self.storage.view.header.revision
