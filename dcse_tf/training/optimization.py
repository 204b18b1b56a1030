"""AdamW, and a learning rate that warms up and decays."""

import keras
from keras import ops

_DECAY_RATE, _DECAY_STEPS, _FLOOR = 0.98, 10_000, 1e-5  # the authors' released code


@keras.saving.register_keras_serializable(package="dcse_tf")
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up to a peak, then a decay.

    Args:
        peak: the highest learning rate.
        warmup_steps: steps of the warm-up; the rate is peak * (step + 1) / warmup_steps there.
        decay: "exponential" (x 0.98 every 10,000 steps, not below 1e-5 or a lower peak), "linear"
            (to 0 at total_steps) or "constant".
        total_steps: steps of the training.
    """

    def __init__(self, peak, warmup_steps, decay, total_steps):
        super().__init__()
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.decay = decay
        self.total_steps = total_steps

    def __call__(self, step):
        step = ops.cast(step, "float32")
        warmup = (step + 1.0) / max(1, self.warmup_steps)
        since = ops.maximum(step - self.warmup_steps, 0.0)
        if self.decay == "exponential":
            rate = ops.power(_DECAY_RATE, ops.floor(since / _DECAY_STEPS))
            factor = ops.maximum(rate, min(1.0, _FLOOR / self.peak) if self.peak else 1.0)
        elif self.decay == "linear":
            factor = ops.maximum(0.0, 1.0 - since / max(1, self.total_steps - self.warmup_steps))
        else:
            factor = ops.ones_like(since)
        return self.peak * ops.minimum(warmup, factor)

    def get_config(self):
        return {
            "peak": self.peak,
            "warmup_steps": self.warmup_steps,
            "decay": self.decay,
            "total_steps": self.total_steps,
        }


def build_optimizer(schedule: WarmupDecay, weight_decay: float) -> keras.optimizers.AdamW:
    """AdamW with BERT's constants; biases and layer norms are not decayed.

    The gradient is clipped by the trainer, after it is summed over the devices.
    """
    optimizer = keras.optimizers.AdamW(
        schedule, beta_1=0.9, beta_2=0.999, epsilon=1e-6, weight_decay=weight_decay
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "beta", "gamma"])
    return optimizer
