"""What the package computes, once more: float64, plain loops, straight from the paper's equations.

Nothing of the package is imported, arrays come without padding, and ties are taken apart by
trying every order. Slow, and short enough to be checked against the paper by eye.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

Ids = Sequence[int]
Arrays = Sequence[np.ndarray]
Tensors = dict[str, np.ndarray]


def matching_matrix(utterance: np.ndarray, response: np.ndarray) -> np.ndarray:
    """Equation 3 for U `[n, d]` and R `[m, d]`: `[n, m]`."""
    (n, d), m = utterance.shape, len(response)
    matrix = np.zeros((n, m), np.float64)
    for i in range(n):
        for j in range(m):
            product = sum(float(utterance[i, k]) * float(response[j, k]) for k in range(d))
            matrix[i, j] = product / math.sqrt(d)
    return matrix


def refined_embedding(utterance: np.ndarray, response: np.ndarray) -> np.ndarray:
    """Equation 4: a row for every token of the utterance, `[n, d]`."""
    matrix = matching_matrix(utterance, response)
    refined = np.zeros(utterance.shape, np.float64)
    for i in range(len(utterance)):
        for j in range(len(response)):
            refined[i] += matrix[i, j] * response[j].astype(np.float64)
    return refined


def mean_of_rows(rows: np.ndarray) -> np.ndarray:
    """The token-level pooling of section 4.4, `[n, d]` to `[d]`."""
    total = np.zeros(rows.shape[1], np.float64)
    for row in rows:
        total += row
    return total / len(rows)


def aggregate_turns(refined: Arrays) -> np.ndarray:
    """Equation 7, I2, pooled: the mean over turns of the mean over the turn's own tokens."""
    return mean_of_rows(np.array([mean_of_rows(rows) for rows in refined]))


def attention_scores(
    pooled: Arrays, weights: Arrays, activation: Callable[[float], float]
) -> list[float]:
    """The two-layer network of equation 6 for every turn's pooled R_hat, `[d]` each.

    Weights are `[d, h]`, `[h]`, `[h, 1]` and `[1]`, kernel and bias of both layers.
    """
    kernel, bias, kernel_2, bias_2 = weights
    scores = []
    for row in pooled:
        hidden = [
            activation(sum(row[i] * kernel[i, j] for i in range(len(row))) + bias[j])
            for j in range(len(bias))
        ]
        scores.append(sum(h * k for h, k in zip(hidden, kernel_2[:, 0], strict=True)) + bias_2[0])
    return scores


def softmax(values: Sequence[float]) -> list[float]:
    terms = [math.exp(value - max(values)) for value in values]
    return [term / sum(terms) for term in terms]


def weighted_turns(refined: Arrays, weights: Arrays, released: bool = False) -> np.ndarray:
    """Equations 5 and 6, I1, pooled; or with tanh and 1 + alpha, as the released code has it."""
    pooled = [mean_of_rows(rows) for rows in refined]
    activation = math.tanh if released else lambda x: max(x, 0.0)
    alphas = softmax(attention_scores(pooled, weights, activation))
    return np.sum(
        [(float(released) + a) * row for a, row in zip(alphas, pooled, strict=True)], axis=0
    )


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    """Cosine of two vectors; 0 if one is zero."""
    product = sum(float(a) * float(b) for a, b in zip(first, second, strict=True))
    norms = [math.sqrt(sum(float(a) ** 2 for a in vector)) for vector in (first, second)]
    return product / (norms[0] * norms[1]) if norms[0] and norms[1] else 0.0


def similarity(context: Arrays, response: np.ndarray) -> float:
    """sim(R, R_tilde) of a response `[m, d]` and context utterances, each `[n, d]`."""
    refined = [refined_embedding(utterance, response) for utterance in context]
    return cosine(aggregate_turns(refined), mean_of_rows(response))


def plain_cosine(context: Arrays, response: np.ndarray) -> float:
    """Cosine of a response's mean `[m, d]` and the mean of the context utterances' means."""
    turns = np.array([mean_of_rows(rows) for rows in context])
    return cosine(mean_of_rows(turns), mean_of_rows(response))


def pair_score(u: np.ndarray, v: np.ndarray, weights: Arrays) -> float:
    """SiameseBERT's network on [u, v, |u - v|]: a layer with a ReLU, then one output.

    Weights are `[3 d, h]`, `[h]`, `[h, 1]` and `[1]`, kernel and bias of both layers.
    """
    features = np.array([*u, *v, *(abs(float(a) - float(b)) for a, b in zip(u, v, strict=True))])
    return attention_scores([features], weights, lambda x: max(x, 0.0))[0]


def nt_xent(similarities: Sequence[float], temperature: float) -> float:
    """One term of equation 8; the first similarity is the positive's."""
    terms = [math.exp(value / temperature) for value in similarities]
    return -math.log(terms[0] / sum(terms))


def layer_norm(row: np.ndarray, gamma: np.ndarray, beta: np.ndarray, epsilon: float) -> np.ndarray:
    mean = row.sum() / len(row)
    variance = ((row - mean) ** 2).sum() / len(row)
    return gamma * (row - mean) / math.sqrt(variance + epsilon) + beta


def gelu(row: np.ndarray) -> np.ndarray:
    """The tanh form of Hendrycks and Gimpel 2016, section 2."""
    return np.array(
        [0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) for x in row]
    )


def exact_gelu(row: np.ndarray) -> np.ndarray:
    """x times the standard normal distribution's share below x."""
    return np.array([0.5 * x * (1 + math.erf(x / math.sqrt(2))) for x in row])


# The least distances of MPNet's buckets: from the ninth on, 8 times the powers of the root of 2.
_BUCKETS = (*range(8), 8, 12, 16, 23, 32, 46, 64, 91)


def relative_bucket(distance: int) -> int:
    """T5's bucket of a distance, of the place of the key less that of the query."""
    nearest = sum(start <= abs(distance) for start in _BUCKETS) - 1
    return nearest + (16 if distance > 0 else 0)


def bert(
    token_ids: Ids,
    tensors: Tensors,
    heads: int,
    epsilon: float,
    segment_ids: Ids | None = None,
    speaker_ids: Ids | None = None,
    activation: Callable[[np.ndarray], np.ndarray] = gelu,
) -> np.ndarray:
    """A BERT, token embeddings `[tokens, d]` of the last layer.

    Args:
        token_ids: one sentence, without padding.
        tensors: by HuggingFace's names, float64; matrices are `[outputs, inputs]`. With a bias by
            distance it is an MPNet.
        segment_ids, speaker_ids: of each token; None for segment 0 and no speakers.
        activation: `gelu` or `exact_gelu`.
    """

    def dense(name: str, rows: np.ndarray) -> np.ndarray:
        return rows @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    def norm(name: str, rows: np.ndarray) -> np.ndarray:
        weights = tensors[f"{name}.LayerNorm.weight"], tensors[f"{name}.LayerNorm.bias"]
        return np.array([layer_norm(row, *weights, epsilon) for row in rows])

    words, places, segments = (
        tensors[f"embeddings.{name}_embeddings.weight"]
        for name in ("word", "position", "token_type")
    )
    of_token = segments[list(segment_ids or [0] * len(token_ids))]
    if speaker_ids:
        of_token = of_token + tensors["embeddings.speaker_embeddings.weight"][list(speaker_ids)]
    x = np.array([words[t] + places[i] + of_token[i] for i, t in enumerate(token_ids)])
    x = norm("embeddings", x)
    places = range(len(token_ids))
    table = tensors.get("encoder.relative_attention_bias.weight", np.zeros((32, heads)))
    bias = [[table[relative_bucket(j - i)] for j in places] for i in places]
    for index in range(sum(name.endswith(".intermediate.dense.bias") for name in tensors)):
        layer = f"encoder.layer.{index}"
        query, key, value = (
            dense(f"{layer}.attention.self.{name}", x) for name in ("query", "key", "value")
        )
        parts = []
        split = (np.split(part, heads, axis=1) for part in (query, key, value))
        for head, (q, k, v) in enumerate(zip(*split)):
            rows = [
                softmax(
                    [float(q[i] @ k[j]) / math.sqrt(len(q[i])) + bias[i][j][head] for j in places]
                )
                for i in places
            ]
            parts.append(np.array(rows) @ v)
        attended = dense(f"{layer}.attention.output.dense", np.concatenate(parts, axis=1))
        x = norm(f"{layer}.attention.output", x + attended)
        hidden = np.array([activation(row) for row in dense(f"{layer}.intermediate.dense", x)])
        x = norm(f"{layer}.output", x + dense(f"{layer}.output.dense", hidden))
    return x


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def lstm(rows: np.ndarray, weights: Arrays) -> np.ndarray:
    """Hochreiter and Schmidhuber 1997 with a forget gate, from a state of zeros: `[n, u]`.

    Weights are `[d, 4 u]`, `[u, 4 u]` and `[4 u]`: of the input, of the last output, and the bias,
    each for the input gate, the forget gate, the candidate and the output gate.
    """
    kernel, recurrent, bias = weights
    units = len(recurrent)
    hidden, cell, outputs = np.zeros(units), np.zeros(units), []
    for row in rows:
        parts = np.split(row @ kernel + hidden @ recurrent + bias, 4)
        before, hidden, cell = cell, np.zeros(units), np.zeros(units)
        for k in range(units):
            kept, added = sigmoid(parts[1][k]) * before[k], sigmoid(parts[0][k])
            cell[k] = kept + added * math.tanh(parts[2][k])
            hidden[k] = sigmoid(parts[3][k]) * math.tanh(cell[k])
        outputs.append(hidden)
    return np.array(outputs)


def _lstm_weights(tensors: Tensors, name: str) -> list[np.ndarray]:
    return [tensors[f"{name}.{part}"] for part in ("kernel", "recurrent_kernel", "bias")]


def bilstm(rows: np.ndarray, tensors: Tensors, name: str) -> np.ndarray:
    """Two LSTMs, the second from the last row to the first, side by side: `[n, 2 u]`."""
    there = lstm(rows, _lstm_weights(tensors, f"{name}.forward"))
    back = lstm(rows[::-1], _lstm_weights(tensors, f"{name}.backward"))[::-1]
    return np.concatenate([there, back], axis=1)


def dual_lstm(first: Ids, second: Ids, tensors: Tensors) -> tuple[float, list[np.ndarray]]:
    """Lowe et al. 2015, section 4.3: c^T M r, and the outputs for both segments' tokens."""
    weights = _lstm_weights(tensors, "lstm")
    outputs = [lstm(tensors["embedding"][list(ids)], weights) for ids in (first, second)]
    c, r = (rows[-1] for rows in outputs)
    return float(c @ tensors["matching"] @ r), outputs


def soft_alignment(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """For every row the sum of the others by the softmax of its products with them (ESIM)."""
    weights = [softmax([float(row @ other) for other in others]) for row in rows]
    return np.array([sum(w * other for w, other in zip(ws, others)) for ws in weights])


def esim(first: Ids, second: Ids, tensors: Tensors) -> tuple[np.ndarray, list[np.ndarray]]:
    """Chen et al. 2017, sections 3.1 to 3.3, up to the pooled vector of both sides, `[8 u]`; and
    the first BiLSTM's outputs for both segments' tokens.
    """
    embedded = [tensors["embedding"][list(ids)] for ids in (first, second)]
    encoded = [bilstm(rows, tensors, "context_lstm") for rows in embedded]
    pooled = []
    for own, other in (encoded, encoded[::-1]):
        aligned = soft_alignment(own, other)
        features = np.concatenate([own, aligned, own - aligned, own * aligned], axis=1)
        narrowed = features @ tensors["projection.kernel"] + tensors["projection.bias"]
        composed = bilstm(np.maximum(narrowed, 0.0), tensors, "composition_lstm")
        pooled += [mean_of_rows(composed), composed.max(axis=0)]
    return np.concatenate(pooled), encoded


def pair_sequence(
    turns: Sequence[Ids],
    speakers: Ids,
    response: Ids,
    first_tokens: int,
    second_tokens: int,
    cls: int,
    sep: int,
    end: int,
) -> tuple[list[int], list[int], list[int]]:
    """[CLS] u1 [EOT] u2 [EOT] ... [SEP] response [SEP]: its tokens, segments and speakers.

    The context is cut in front, the response at its end; the lengths count [CLS] and the [SEP] of
    each.
    """
    context = [(t, who) for turn, who in zip(turns, speakers, strict=True) for t in (*turn, end)]
    while len(context) > first_tokens - 2:
        context.pop(0)
    kept = list(response)
    while len(kept) > second_tokens - 1:
        kept.pop()
    tokens = [cls, *(t for t, _ in context), sep, *kept, sep]
    segments = [0] * (len(context) + 2) + [1] * (len(kept) + 1)
    return tokens, segments, [0, *(who for _, who in context), 0, *([0] * (len(kept) + 1))]


def cross_encoder(
    sequence: tuple[list[int], list[int], list[int]], tensors: Tensors, heads: int, epsilon: float
) -> float:
    """The logit of what `pair_sequence` gives, by the tensors of BertForSequenceClassification."""
    tensors = {name.removeprefix("bert."): np.float64(value) for name, value in tensors.items()}
    tokens, segments, speakers = sequence
    known = "embeddings.speaker_embeddings.weight" in tensors
    x = bert(tokens, tensors, heads, epsilon, segments, speakers if known else None)
    pooled = np.tanh(tensors["pooler.dense.weight"] @ x[0] + tensors["pooler.dense.bias"])
    return float((tensors["classifier.weight"] @ pooled + tensors["classifier.bias"])[0])


def adamw(value: np.ndarray, gradients: Arrays, rates: Sequence[float], decay: float) -> np.ndarray:
    """Loshchilov and Hutter 2019, algorithm 2, with BERT's constants, a gradient and a rate a step.

    The bias is corrected in the rate, as at the end of section 2 of Kingma and Ba 2015: epsilon is
    added to the root of the uncorrected second moment.
    """
    first, second = np.zeros_like(value), np.zeros_like(value)
    for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        corrected = rate * math.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        value = value - rate * decay * value - corrected * first / (np.sqrt(second) + 1e-6)
    return value


def rankings(scores: Sequence[float]) -> Iterator[list[int]]:
    """Every order of the candidates by falling score: all permutations of equal ones."""
    groups = [
        [index for index, score in enumerate(scores) if score == value]
        for value in sorted(set(scores), reverse=True)
    ]
    for parts in itertools.product(*(itertools.permutations(group) for group in groups)):
        yield [index for part in parts for index in part]


def _expected(scores: Sequence[float], measure: Callable[[list[int]], float]) -> float:
    values = [measure(ranking) for ranking in rankings(scores)]
    return sum(values) / len(values)


def average_precision(scores: Sequence[float], relevant: Sequence[bool]) -> float:
    def measure(ranking: list[int]) -> float:
        places = [place for place, index in enumerate(ranking, start=1) if relevant[index]]
        return sum(hits / place for hits, place in enumerate(places, start=1)) / len(places)

    return _expected(scores, measure)


def reciprocal_rank(scores: Sequence[float], relevant: Sequence[bool]) -> float:
    def measure(ranking: list[int]) -> float:
        return 1 / next(place for place, i in enumerate(ranking, start=1) if relevant[i])

    return _expected(scores, measure)


def recall_at(k: int, scores: Sequence[float]) -> float:
    """Whether candidate 0 is among the first k."""
    return _expected(scores, lambda ranking: float(0 in ranking[:k]))


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Pearson's correlation of ranks, equal values sharing their mean rank."""

    def ranks(values: Sequence[float]) -> list[float]:
        return [
            1 + sum(other < value for other in values) + (list(values).count(value) - 1) / 2
            for value in values
        ]

    a, b = (np.array(ranks(values)) for values in (first, second))
    return cosine(a - a.mean(), b - b.mean())


def turn_scores(turns: Arrays, kernel: np.ndarray, bias: float) -> list[float]:
    """Equations 6 and 7 of Xu et al. 2020 before the softmax: the mean and the maximum of each
    turn's tokens `[tokens, d]`, side by side, times a kernel `[2d]`.
    """
    scores = []
    for tokens in turns:
        largest = [max(float(x) for x in column) for column in tokens.T]
        vector = [*mean_of_rows(tokens), *largest]
        scores.append(sum(a * b for a, b in zip(vector, kernel, strict=True)) + bias)
    return scores


def binary_cross_entropy(logit: float, label: float) -> float:
    """Equations 2 and 3 of Xu et al. 2020."""
    probability = 1.0 / (1.0 + math.exp(-logit))
    return -(label * math.log(probability) + (1.0 - label) * math.log(1.0 - probability))


def consistency_loss(same: float, other: float, margin: float) -> float:
    """Equation 9 of Xu et al. 2020 for two logits: of one speaker, and of another session."""
    first, second = (1.0 / (1.0 + math.exp(-logit)) for logit in (same, other))
    return max(0.0, margin - first + second)
