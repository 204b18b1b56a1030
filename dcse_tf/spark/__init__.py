"""Jobs on a Spark cluster: prepares and embeds corpora that are too large for one machine."""

from dcse_tf.spark.embed_on_spark import embed_column as embed_column
