"""What reads texts warns once if their characters are unknown to its vocabulary."""

import numpy as np

from dcse_tf.bert.token_rows import UnknownTokens
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.reranker.reranker import Reranker

KNOWN = ["where is my parcel", "it left today . thanks"]
FOREIGN = ["您", "哪里", "什么时"]  # each character a token, none of them known


def test_foreign_texts_are_warned_of_once(model, rerankers, caplog):
    encoder = SentenceEncoder.load(model)
    reranker = Reranker.load(rerankers[False])

    def rerank(texts, show_progress):
        reranker.score([texts[:1]], [texts[1:]], show_progress=show_progress)

    for read in (encoder.encode, rerank):
        caplog.clear()
        read(KNOWN, show_progress=False)
        assert "[UNK]" not in caplog.text
        for _ in range(2):
            read([*KNOWN, *FOREIGN], show_progress=False)
        (warning,) = [x for x in caplog.records if "are [UNK]" in x.getMessage()]
        assert warning.getMessage().startswith("6 of the ")


def test_tokens_that_every_text_has_do_not_count(caplog):
    """[CLS] and [SEP] of 20 texts would make 5 of 55 tokens 5 of 95."""
    unknown = UnknownTokens(1, "[UNK]", 2)
    for number in range(20):
        unknown.add(np.array([2, *[7] * (2 + number % 2), 3]), 1)
    unknown.add(np.array([2, 1, 1, 1, 1, 3]), 1)
    assert not caplog.text
    unknown.add(np.array([2, 1, 3]), 1)
    assert "5 of the 55 tokens read are [UNK] (9.1%)" in caplog.text
