"""The terms of the tasks' objectives, one in each module, see `dcse_tf.tasks.spec.Term`."""
