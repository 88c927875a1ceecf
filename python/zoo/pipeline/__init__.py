"""Models, losses and NNFrames of Analytics Zoo."""
