"""DialogueCSE (EMNLP 2021) in TensorFlow 2 and Keras 3: sentence embeddings learnt from dialogues.

Importing the package starts no TensorFlow; the jobs in `dcse_tf.cli` do, when they run.
"""

__version__ = "0.1.0"
