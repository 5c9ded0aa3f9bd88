"""`digits`: scikit-learn's 8x8 handwritten digits, 1,797 images of 64 tokens in 17 levels; one image is one document.

The split is by place in scikit-learn's order, which is by writer: the first 1,437 train, the next 180 valid, the last 180 test.
"""

import numpy as np

from memformer_torch.data.corpus import Corpus, Documents, fingerprint


def load() -> Corpus:
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError("digits needs the package scikit-learn: pip install scikit-learn") from error
    images = load_digits().data.astype(np.uint8)  # (1797, 64), levels 0 to 16
    parts = np.split(images, [1437, 1617])
    splits = {name: Documents.of_rows(part) for name, part in zip(("train", "valid", "test"), parts, strict=True)}
    return Corpus(
        name="digits",
        splits=splits,
        vocab_size=17,
        fingerprint=fingerprint(splits, "digits"),
        image_shape=(8, 8),
        facts={"from": "scikit-learn", "images": len(images), "split": "by place: 1,437 / 180 / 180"},
    )
