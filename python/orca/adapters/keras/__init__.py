"""All that imports Keras and TensorFlow."""
