"""Terms of the tasks' objectives; all but `contrast`, which plug-ins extend, import TensorFlow."""
