"""What a layout does with a model and its data, before anything runs: segments, schedules, stages.

It knows shapes and no values of tensors.
"""
