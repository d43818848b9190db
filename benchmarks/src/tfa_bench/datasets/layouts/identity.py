"""Identity folders: `<folder>/<class>/*.jpg`; an image of the query's class is a positive.

    test/query_drone/0001/image-01.jpeg        University-1652
    test/gallery_satellite/0001/0001.jpg
    test/query_drone/000001/H80.JPG            DenseUAV
    test/gallery_satellite/000001/H80.tif

Gallery classes that no query belongs to are distractors. They stay, as in the datasets' own baselines.
"""

from __future__ import annotations

from pathlib import Path

from tfa_bench.datasets.files import BadDataset, DatasetFiles, images_in, same_labels


def load(
    root: Path,
    *,
    query: str = "test/query_drone",
    gallery: str = "test/gallery_satellite",
    distractors: bool = True,
) -> DatasetFiles:
    """Queries and gallery with their classes. `distractors=False` drops gallery classes without a query."""
    queries, query_classes = labeled_images(root / query)
    database, classes = labeled_images(root / gallery)
    notes: tuple[str, ...] = ()
    if not distractors:
        wanted = set(query_classes)
        kept = [index for index, label in enumerate(classes) if label in wanted]
        if not kept:
            raise BadDataset(f"{root / gallery} and {root / query} share no class; are both of the same split?")
        dropped = len(classes) - len(kept)
        notes = (
            f"{dropped} gallery images of {len(set(classes) - wanted)} classes without a query are left out, as in "
            "Sample4Geo's evaluator; the dataset's own baseline keeps them",
        )
        database = tuple(database[index] for index in kept)
        classes = tuple(classes[index] for index in kept)
    return DatasetFiles(database, queries, same_labels(classes, query_classes), notes=notes)


def labeled_images(folder: Path) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Images below the class folders of a folder, in the order of their paths, and the class of each."""
    images = images_in(folder, deep=True)
    loose = [image for image in images if image.parent == folder]
    if loose:
        raise BadDataset(f"{loose[0]} lies in no class folder; images are expected as {folder.name}/<class>/<image>")
    return images, tuple(image.relative_to(folder).parts[0] for image in images)
