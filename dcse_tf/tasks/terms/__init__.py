"""The terms of the tasks' objectives, see `dcse_tf.tasks.spec.Term`.

All but `contrast`, which tasks of plug-ins may extend, import TensorFlow.
"""
