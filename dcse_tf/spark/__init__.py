"""Jobs on a Spark cluster: preparation and embedding of corpora that one machine is too small for.

pip install -e ".[spark]"
"""

from dcse_tf.spark.embed import embed_column

__all__ = ["embed_column"]
