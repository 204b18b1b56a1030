"""Implements MTEB's protocol for encoders (`mteb.EncoderProtocol`, mteb 2)."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np


class MtebEncoder:
    """An encoder for `mteb.evaluate`. `encode` alone works without mteb installed.

    Args:
        encode: maps sentences to float32 `[n, dim]`; takes the argument show_progress.
        name, fingerprint: under which MTEB stores results, as name and revision.
        dim: length of an embedding.
    """

    def __init__(self, encode: Callable[..., np.ndarray], name: str, fingerprint: str, dim: int):
        self._encode = encode
        self._name = name
        self._fingerprint = fingerprint
        self._dim = dim

    def encode(self, inputs: Iterable[dict[str, Any]], **kwargs: Any) -> np.ndarray:
        """Embeds the texts of batches; float32 `[texts, dim]`.

        Of MTEB's settings, show_progress_bar is used. Encoders here are trained without prompts,
        and the texts of all batches are sorted by length and batched again.
        """
        texts = [text for batch in inputs for text in batch["text"]]
        return self._encode(texts, show_progress=bool(kwargs.get("show_progress_bar", False)))

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Cosines `[n, m]` of embeddings `[n, dim]` and `[m, dim]`, a torch tensor."""
        from mteb.similarity_functions import cos_sim

        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Cosines `[n]` of embeddings `[n, dim]` and `[n, dim]`, a torch tensor."""
        from mteb.similarity_functions import pairwise_cos_sim

        return pairwise_cos_sim(embeddings1, embeddings2)

    @property
    def mteb_model_meta(self) -> Any:
        """Name, revision, dimensions and the similarity, an `mteb.models.ModelMeta`."""
        from mteb.models import ModelMeta
        from mteb.models.model_meta import ScoringFunction

        # MTEB names models ORGANISATION/NAME and makes folders of both.
        name = "dcse_tf/" + self._name.strip("/").replace("/", "__").replace(":", "__")
        return ModelMeta.create_empty(
            {
                "name": name,
                "revision": self._fingerprint[:16],
                "embed_dim": self._dim,
                "similarity_fn_name": ScoringFunction.COSINE,
            }
        )
