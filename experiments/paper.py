"""The results published by Liu et al. (EMNLP 2021) and Xu et al. (2020), in percent."""

# Table 2: row -> corpus -> correlation, MAP, MRR.
_SCORES = ("spearman", "map", "mrr")
_TABLE_2 = {
    "glove": ((36.64, 31.59, 40.91), (39.61, 45.94, 59.53), (19.80, 46.14, 63.68)),
    "bert_cls": ((22.34, 29.54, 35.94), (21.40, 45.05, 59.58), (16.61, 47.75, 65.91)),
    "bert_avg": ((40.95, 32.10, 43.01), (50.89, 49.08, 64.54), (43.68, 51.77, 70.79)),
    "bert_flow": ((45.56, 33.13, 40.86), (65.11, 49.53, 64.30), (55.04, 52.16, 71.06)),
    "bert_whitening": ((26.70, 32.09, 43.01), (61.57, 49.08, 64.54), (47.64, 51.77, 70.80)),
    "adapt_cls": ((27.35, 31.30, 39.83), (26.49, 48.51, 65.70), (33.91, 51.75, 74.68)),
    "adapt_avg": ((42.81, 32.53, 43.49), (72.60, 53.03, 66.99), (74.26, 59.32, 76.89)),
    "adapt_flow": ((50.17, 34.32, 41.62), (73.32, 53.42, 67.00), (74.31, 59.77, 76.48)),
    "adapt_whitening": ((29.68, 32.53, 43.48), (67.18, 53.04, 67.01), (57.22, 59.33, 76.84)),
    "siamese_single": ((77.95, 76.26, 84.92), (75.70, 61.92, 74.44), (74.83, 65.84, 79.88)),
    "siamese_multi": ((76.70, 73.81, 85.09), (76.85, 62.45, 74.64), (75.45, 66.24, 80.58)),
    "dialogue_cse_i1": ((80.13, 87.26, 85.89), (80.60, 66.54, 74.79), (81.79, 68.70, 79.89)),
    "dialogue_cse_i2": ((82.36, 91.40, 90.45), (81.22, 68.02, 79.52), (83.94, 69.32, 81.20)),
}
_CORPORA = ("mdc", "jddc", "ecd")
TABLE_2: dict[str, dict[str, dict[str, float]]] = {
    row: {
        corpus: dict(zip(_SCORES, scores, strict=True))
        for corpus, scores in zip(_CORPORA, by_corpus, strict=True)
    }
    for row, by_corpus in _TABLE_2.items()
}


def _by_value(
    values: tuple[float, ...], **columns: tuple[tuple[float, ...], tuple[float, ...]]
) -> dict[float, dict[str, dict[str, float]]]:
    return {
        value: {
            corpus: {"spearman": correlations[i], "map": mean_precisions[i]}
            for corpus, (correlations, mean_precisions) in columns.items()
        }
        for i, value in enumerate(values)
    }


# Table 3: temperature -> corpus -> correlation, MAP (the paper gives neither MRR nor MDC).
TABLE_3 = _by_value(
    (0.05, 0.1, 0.2, 0.5),
    jddc=((80.05, 81.22, 80.82, 79.85), (67.19, 68.02, 67.55, 68.63)),
    ecd=((82.24, 83.94, 84.24, 83.76), (67.98, 69.32, 69.63, 69.11)),
)

# Table 4: negatives per positive -> corpus -> correlation, MAP.
TABLE_4 = _by_value(
    (1, 4, 9, 19),
    jddc=((80.60, 80.85, 81.22, 81.56), (67.48, 67.69, 68.02, 68.63)),
    ecd=((82.55, 83.14, 83.94, 84.12), (68.56, 68.87, 69.32, 69.56)),
)

# Xu et al. 2020, tables 1 and 2, response selection: row -> R@1 of 2, then R@1, R@2 and R@5 of 10
# on Ubuntu, then the latter three on E-commerce. Rows that the authors trained and rows that they
# cite are not distinguished here. BERT-VFT is the row marked "(Ours)".
_SELECTION = {
    "dual_lstm": (90.1, 63.8, 78.4, 94.9, 36.5, 53.6, 82.8),
    "esim": (95.0, 79.6, 87.4, 97.5, 57.0, 76.7, 94.8),
    "bert": (95.4, 81.7, 90.4, 97.7, 61.0, 81.4, 97.3),
    "sa_bert": (96.5, 85.5, 92.8, 98.3, 70.4, 87.9, 98.5),
    "bert_vft": (96.9, 86.7, 93.9, 98.7, 71.7, 88.4, 98.6),
    "bert_sl": (97.5, 88.4, 94.6, 99.0, 77.6, 91.9, 99.1),
    "bert_sl_without_next_session": (97.3, 87.9, 94.4, 98.9, 76.0, 91.4, 98.8),
    "bert_sl_without_restoration": (97.4, 88.1, 94.5, 99.0, 76.3, 91.6, 99.1),
    "bert_sl_without_incoherence": (97.2, 87.7, 94.2, 98.9, 75.5, 91.1, 98.7),
    "bert_sl_without_consistency": (97.3, 88.0, 94.5, 98.9, 74.2, 89.7, 98.6),
    "dual_lstm_sl": (92.5, 72.4, 85.8, 96.9, 51.8, 72.2, 93.3),
    "esim_sl": (96.3, 82.2, 90.9, 98.0, 62.3, 79.7, 96.9),
}
_RECALLS = ("r1", "r2", "r5")
SELECTION: dict[str, dict[str, dict[str, float]]] = {
    row: {
        "ubuntu": dict(zip(("r1_of_2", *_RECALLS), scores[:4], strict=True)),
        "ecd": dict(zip(_RECALLS, scores[4:], strict=True)),
    }
    for row, scores in _SELECTION.items()
}
