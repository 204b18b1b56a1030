"""The models of Xu et al. 2020 (response selection) and further ones, as data."""

import dataclasses

AUXILIARY = ("next_session", "restoration", "incoherence", "consistency")
_SHORT = {
    "next_session": "NSP",
    "restoration": "UR",
    "incoherence": "ID",
    "consistency": "CD",
}


@dataclasses.dataclass(frozen=True)
class SelectionRow:
    """How a model that ranks responses is made.

    Attributes:
        name: used in folders and --rows.
        title: the paper's name of the model, or ours beyond the paper.
        post: flags of the post-training that it starts from; None to start from the encoder itself.
        train: flags of its own training.
        architecture: "bert", which starts from a checkpoint; "dual_lstm" or "esim", from random
            weights; "embedding", the sentence encoder, trained as `recommended`.
        auxiliary: the auxiliary tasks trained together with the matching.
        way: the similarity that it is scored by.
        model: name of the model if two rows measure the same one; "" for the row's own name.
    """

    name: str
    title: str
    post: tuple[str, ...] | None = None
    train: tuple[str, ...] = ()
    architecture: str = "bert"
    auxiliary: tuple[str, ...] = ()
    way: str = "reranker"
    model: str = ""

    @property
    def folder(self) -> str:
        """The model's name, used in folders."""
        return self.model or self.name


_UTTERANCE = ("--pairs=utterance",)
_SPEAKERS = ("--speaker_embeddings",)

BERT = SelectionRow("bert", "BERT")
BERT_VFT = SelectionRow("bert_vft", "BERT-VFT", _UTTERANCE)
BERT_SL = SelectionRow("bert_sl", "BERT-SL", _UTTERANCE, auxiliary=AUXILIARY)
ABLATIONS = tuple(
    SelectionRow(
        f"bert_sl_without_{left_out}",
        f"BERT-SL w/o {_SHORT[left_out]}",
        _UTTERANCE,
        auxiliary=tuple(task for task in AUXILIARY if task != left_out),
    )
    for left_out in AUXILIARY
)
DUAL_LSTM = SelectionRow("dual_lstm", "DualLSTM", architecture="dual_lstm")
DUAL_LSTM_SL = SelectionRow(
    "dual_lstm_sl", "DualLSTM-SL", architecture="dual_lstm", auxiliary=AUXILIARY
)
ESIM = SelectionRow("esim", "ESIM", architecture="esim")
ESIM_SL = SelectionRow("esim_sl", "ESIM-SL", architecture="esim", auxiliary=AUXILIARY)
_EMBEDDING = ("--flagfile=flags/recommended.flags", "--context_side=before")
COSINE, MATCHING = (
    SelectionRow(
        f"embedding_{way}",
        f"embeddings, {way}",
        train=_EMBEDDING,
        architecture="embedding",
        way=way,
        model="embedding",
    )
    for way in ("cosine", "matching")
)

ROWS = (
    BERT,
    BERT_VFT,
    BERT_SL,
    SelectionRow("sa_bert", "SA-BERT", (*_UTTERANCE, *_SPEAKERS), _SPEAKERS),
    # Beyond the paper: other pairs in the post-training (Lin et al. 2022, Han et al. 2021).
    SelectionRow("bert_pieces", "MLM+NSP", ("--pairs=pieces",)),
    SelectionRow("bert_fp", "BERT-FP", ("--pairs=relevance",)),
    # A sentence encoder on the same candidates: not a re-ranker, but thousands of times faster.
    COSINE,
    MATCHING,
    *ABLATIONS,
    DUAL_LSTM,
    DUAL_LSTM_SL,
    ESIM,
    ESIM_SL,
)
# Name of a table -> its title, row -> the row that it is compared with, and its rows.
TABLES = {
    "table1": (
        "Table 1: response selection",
        {row: BERT_VFT for row in (*ROWS[:8], DUAL_LSTM, ESIM) if row is not BERT_VFT},
        (*ROWS[:8], DUAL_LSTM, ESIM),
    ),
    "ablation": (
        "Table 1, its last lines: BERT-SL without one of its tasks",
        dict.fromkeys(ABLATIONS, BERT_SL),
        (BERT_VFT, BERT_SL, *ABLATIONS),
    ),
    "table2": (
        "Table 2: the auxiliary tasks in models without a pre-trained encoder",
        {DUAL_LSTM_SL: DUAL_LSTM, ESIM_SL: ESIM},
        (DUAL_LSTM, DUAL_LSTM_SL, ESIM, ESIM_SL),
    ),
    "figure3": (
        "Figure 3: R@1 by the length of the context",
        {},
        (BERT, BERT_VFT, BERT_SL, ESIM),
    ),
}
