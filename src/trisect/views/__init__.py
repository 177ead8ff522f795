"""What a layer may ask about other rows, other steps and chance: a view, one process or any layout.

`view.View` has the verbs. A verb that moves rows is an exchange, one class a file: how rows move forward, how their
gradients move back, and how many bytes that is. A layer that calls verbs cannot tell which view it was given. Does not
know files, the training loop or schedules.
"""
