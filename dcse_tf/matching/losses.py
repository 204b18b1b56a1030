"""The losses: NT-Xent, response selection with its auxiliary tasks, and BERT's pre-training."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="dcse_tf")
class NTXent(keras.layers.Layer):
    """-log softmax of the positive's similarity among the candidates' (paper, equation 8).

    Args:
        temperature: divisor of the similarities.
    """

    def __init__(self, temperature=0.1, **kwargs):
        super().__init__(**kwargs)
        self.temperature = temperature

    def call(self, similarity, candidate_mask):
        """Computes the loss of every row.

        Args:
            similarity: float `[batch, candidates]`; column 0 is the positive.
            candidate_mask: bool `[batch, candidates]`, True = a candidate.

        Returns:
            float `[batch]`.
        """
        # So far below every real logit, a cosine divided by the temperature, that exp gives 0.
        masked = ops.full((), -1e9, similarity.dtype)
        logits = ops.where(candidate_mask, similarity / self.temperature, masked)
        return ops.logsumexp(logits, axis=-1) - logits[:, 0]

    def compute_output_shape(self, similarity_shape, candidate_mask_shape):
        return similarity_shape[:1]

    def get_config(self):
        return {**super().get_config(), "temperature": self.temperature}


@keras.saving.register_keras_serializable(package="dcse_tf")
class JointLoss(keras.layers.Layer):
    """The loss of response selection with its auxiliary tasks (Xu et al. 2020, equation 10).

    Args:
        auxiliary_weight: weight of each auxiliary task's loss; the matching's is 1.
        margin: by how much the consistency (a sigmoid) of two utterances by one speaker must
            exceed that of utterances from different sessions (equation 9).
    """

    def __init__(self, auxiliary_weight=1.0, margin=0.6, **kwargs):
        super().__init__(**kwargs)
        self.auxiliary_weight = auxiliary_weight
        self.margin = margin

    def call(self, logits, targets):
        """Sums losses and correct answers over a batch.

        Args:
            logits: each task's logits by its name, see `build_selection_model`.
            targets: labels, ids and weights of the tasks, see `make_selection_batches`.

        Returns:
            float32 scalars: loss; weight, the sum of the matching's weights; TASK_weight, that of a
            task's own; TASK_loss and TASK_accuracy, weighted sums; incoherence_chance, the accuracy
            of guessing.
        """
        sums = {"weight": ops.sum(targets["matching_weights"])}
        loss = ops.zeros(())
        for name, own in logits.items():
            weights = targets[f"{name}_weights"]
            if name == "consistency":
                losses, hits = self._rank_pairs(own)
                weights = weights[::2] + weights[1::2]
            elif name in ("matching", "next_session"):
                labels = targets[f"{name}_labels"]
                losses = ops.softplus(own) - labels * own
                hits = ops.equal(own > 0.0, labels > 0.5)
            else:
                answer = "incoherence_labels" if name == "incoherence" else "restoration_ids"
                losses, hits = _choose(own, targets[answer])
            sums[f"{name}_weight"] = ops.sum(weights)
            sums[f"{name}_loss"] = ops.sum(losses * weights)
            sums[f"{name}_accuracy"] = ops.sum(ops.cast(hits, "float32") * weights)
            share = 1.0 if name == "matching" else self.auxiliary_weight
            loss = loss + share * sums[f"{name}_loss"]
        if "incoherence" in logits:
            turns = ops.sum(ops.cast(logits["incoherence"] > -1e8, "float32"), axis=1)
            sums["incoherence_chance"] = ops.sum(
                targets["incoherence_weights"] / ops.maximum(turns, 1.0)
            )
        return {**sums, "loss": loss}

    def _rank_pairs(self, logits):
        """Hinge loss of pairs of rows: the first must exceed the second by the margin."""
        scores = ops.reshape(ops.sigmoid(logits), (-1, 2))
        losses = ops.relu(self.margin - scores[:, 0] + scores[:, 1])
        return losses, scores[:, 0] > scores[:, 1]

    def get_config(self):
        settings = {"auxiliary_weight": self.auxiliary_weight, "margin": self.margin}
        return {**super().get_config(), **settings}


@keras.saving.register_keras_serializable(package="dcse_tf")
class PreTrainingLoss(keras.layers.Layer):
    """The loss of BERT's pre-training: masked tokens and the class of two segments.

    It is the sum of both cross entropies (Devlin et al. 2019, appendix A.2).
    """

    def call(self, logits, targets):
        """Sums losses and correct answers over a batch.

        Args:
            logits: float: pairs `[rows, classes]`, masked_lm `[predictions, vocabulary]`.
            targets: pairs_labels, masked_lm_ids and both weights, see `make_post_training_batches`.

        Returns:
            float32 scalars: loss; weight, the number of rows; TASK_weight, the sum of a task's own
            weights; TASK_loss and TASK_accuracy, weighted sums.
        """
        sums = {"weight": ops.cast(ops.shape(targets["pairs_labels"])[0], "float32")}
        for name, answer in (("pairs", "pairs_labels"), ("masked_lm", "masked_lm_ids")):
            losses, hits = _choose(logits[name], targets[answer])
            weights = targets[f"{name}_weights"]
            sums[f"{name}_weight"] = ops.sum(weights)
            sums[f"{name}_loss"] = ops.sum(losses * weights)
            sums[f"{name}_accuracy"] = ops.sum(ops.cast(hits, "float32") * weights)
        return {**sums, "loss": sums["pairs_loss"] + sums["masked_lm_loss"]}


def _choose(logits, answer):
    """The answer's cross entropy, and whether its logit is the largest."""
    right = ops.take_along_axis(logits, ops.expand_dims(answer, -1), axis=-1)[:, 0]
    losses = ops.logsumexp(logits, axis=-1) - right
    return losses, ops.equal(ops.argmax(logits, axis=-1), ops.cast(answer, "int32"))
